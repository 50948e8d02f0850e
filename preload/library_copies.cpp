#include "preload/library_copies.hpp"

#include <dlfcn.h>
#include <link.h>

#include "preload/interpose.hpp"

namespace uvm::preload {
namespace {

const void* own_address() {
  return reinterpret_cast<const void*>(&own_path);
}

bool contains(const dl_phdr_info& library, const void* address) {
  const auto wanted = reinterpret_cast<ElfW(Addr)>(address);
  for (int index = 0; index < library.dlpi_phnum; ++index) {
    const ElfW(Phdr)& header = library.dlpi_phdr[index];
    const ElfW(Addr) start = library.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && start <= wanted && wanted < start + header.p_memsz) return true;
  }
  return false;
}

const void* first_in_program(const char* function) noexcept {
  void* global_scope = dlopen(nullptr, RTLD_LAZY);
  return global_scope != nullptr ? dlsym(global_scope, function) : nullptr;
}

// Stops at the first copy, because the loader lists libraries in the order of loading.
int visit(dl_phdr_info* library, std::size_t, void* context) {
  if (!file_name(library->dlpi_name).starts_with("libuvmalloc_preload.so")) return 0;
  if (!contains(*library, own_address())) *static_cast<std::string*>(context) = library->dlpi_name;
  return 1;
}

}  // namespace

Dl_info own_library() noexcept {
  Dl_info found{};
  dladdr(own_address(), &found);
  return found;
}

std::string own_path() {
  const char* path = own_library().dli_fname;
  return path != nullptr ? path : "";
}

bool is_of_own_library(const void* address) noexcept {
  // Compares load addresses, because this library may have any file name.
  static const void* const kOwnBase = own_library().dli_fbase;
  Dl_info found{};
  return dladdr(address, &found) != 0 && found.dli_fbase == kOwnBase;
}

bool is_first_for_calls() noexcept {
  const void* found = first_in_program("cudaMalloc");
  return found != nullptr && is_of_own_library(found);
}

bool is_linked_to_another() noexcept {
  const void* found = first_in_program("uvmalloc_allocate");
  return found != nullptr && !is_of_own_library(found);
}

std::string earlier_copy() {
  std::string path;
  dl_iterate_phdr(visit, &path);
  return path;
}

}  // namespace uvm::preload
