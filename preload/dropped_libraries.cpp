#include "preload/dropped_libraries.hpp"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "preload/interpose.hpp"

namespace uvm::preload {
namespace {

// The names that programs are linked to, newest first. All intercepted calls have the same
// arguments in all these versions, except two in cuda/runtime_calls.cpp.
constexpr std::array<std::string_view, 10> kNames = {
    "libcudart.so.14",  "libcudart.so.13",  "libcudart.so.12",  "libcudart.so.11.0",
    "libcuda.so.1",     "libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6",
    "libamdhip64.so.5", "libamdhip64.so"};

// Returns whether a library or program was linked to libuvmalloc.so.
bool needs_us(const dl_phdr_info& object) noexcept {
  for (int index = 0; index < object.dlpi_phnum; ++index) {
    const ElfW(Phdr)& header = object.dlpi_phdr[index];
    if (header.p_type != PT_DYNAMIC) continue;
    const auto* dynamic = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + header.p_vaddr);
    const char* names = nullptr;
    for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    }
    for (const ElfW(Dyn)* entry = dynamic; names != nullptr && entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag != DT_NEEDED) continue;
      if (file_name(names + entry->d_un.d_val).starts_with("libuvmalloc.so")) return true;
    }
  }
  return false;
}

bool is_linked_to() noexcept {
  return dl_iterate_phdr(
             [](dl_phdr_info* object, std::size_t, void*) {
               if (file_name(object->dlpi_name).starts_with("linux-vdso.so")) return 0;
               return needs_us(*object) ? 1 : 0;
             },
             nullptr) != 0;
}

// Returns the folders in which the loader searches for the program's libraries. They are needed
// because dlopen() in this library uses this library's run path, not the program's.
std::vector<std::string> folders_of_program() {
  void* program = dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo size{};
  if (program == nullptr || dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0) return {};
  std::vector<std::max_align_t> storage(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* found = reinterpret_cast<Dl_serinfo*>(storage.data());
  found->dls_size = size.dls_size;
  found->dls_cnt = size.dls_cnt;
  if (dlinfo(program, RTLD_DI_SERINFO, found) != 0) return {};
  std::vector<std::string> folders;
  for (unsigned index = 0; index < found->dls_cnt; ++index) {
    folders.emplace_back(found->dls_serpath[index].dls_name);
  }
  return folders;
}

bool open(const std::string& file) {
  return dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
}

bool open_newest(std::string_view library) {
  const std::vector<std::string> folders = folders_of_program();
  for (const std::string_view name : kNames) {
    if (!name.starts_with(library)) continue;
    if (open(std::string(name))) return true;
    for (const std::string& folder : folders) {
      if (open(folder + "/" + std::string(name))) return true;
    }
  }
  return false;
}

}  // namespace

bool open_dropped_library(const char* library) noexcept {
  try {
    return is_linked_to() && open_newest(library);
  } catch (const std::exception&) {
    return false;  // out of memory; the next call tries again
  }
}

}  // namespace uvm::preload
