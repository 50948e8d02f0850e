#include "preload/interpose.hpp"

#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstring>

#include "preload/library_copies.hpp"
#include "preload/symbol_table.hpp"

namespace uvm::preload {
namespace {

// Finds a mapped library by the beginning of its file name. Allocates nothing, because a callback
// of dl_iterate_phdr must not throw.
struct LibrarySearch {
  const char* library;
  char path[PATH_MAX] = "";

  static int look(dl_phdr_info* info, std::size_t, void* context) noexcept {
    auto* search = static_cast<LibrarySearch*>(context);
    if (!file_name(info->dlpi_name).starts_with(search->library)) return 0;
    if (std::strlen(info->dlpi_name) >= sizeof search->path) return 0;
    std::strcpy(search->path, info->dlpi_name);
    return 1;
  }
};

// Finds the first library after this one that defines a symbol. The loader lists libraries in the
// order of loading. Skips earlier libraries, because one of them may be a hook that has just called
// this library.
struct DefinitionSearch {
  const char* symbol;
  const void* own_base;
  bool is_after_own = false;
  void* found = nullptr;

  static int look(dl_phdr_info* info, std::size_t, void* context) noexcept {
    auto* search = static_cast<DefinitionSearch*>(context);
    if (!search->is_after_own) {
      search->is_after_own = info->dlpi_addr == reinterpret_cast<ElfW(Addr)>(search->own_base);
      return 0;
    }
    if (file_name(info->dlpi_name).starts_with("linux-vdso.so")) return 0;
    for (int index = 0; index < info->dlpi_phnum; ++index) {
      const ElfW(Phdr)& header = info->dlpi_phdr[index];
      if (header.p_type != PT_DYNAMIC) continue;
      const auto* dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + header.p_vaddr);
      search->found = symbol_in(info->dlpi_addr, dynamic, search->symbol);
    }
    return search->found != nullptr ? 1 : 0;
  }
};

// Returns how often the loader has mapped a library, at least 1.
std::uint64_t mapped_so_far() noexcept {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* context) {
        *static_cast<unsigned long long*>(context) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

void* in_mapped_library(const char* symbol, const char* library) noexcept {
  LibrarySearch search{library};
  dl_iterate_phdr(LibrarySearch::look, &search);
  if (search.path[0] == '\0') return nullptr;
  void* handle = dlopen(search.path, RTLD_NOLOAD | RTLD_LAZY);
  return handle != nullptr ? dlsym(handle, symbol) : nullptr;
}

void* in_later_library(const char* symbol) noexcept {
  DefinitionSearch search{symbol, own_library().dli_fbase};
  dl_iterate_phdr(DefinitionSearch::look, &search);
  return search.found;
}

}  // namespace

void* next_definition(const char* symbol, const char* library) noexcept {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr && library != nullptr) found = in_mapped_library(symbol, library);
  return found != nullptr ? found : in_later_library(symbol);
}

void* NextDefinition::look_up() noexcept {
  const std::uint64_t mapped = mapped_so_far();
  if (missing_at_.load(std::memory_order_relaxed) == mapped) return nullptr;
  void* found = next_definition(symbol_, library_);
  if (found != nullptr) {
    found_.store(found, std::memory_order_release);
  } else {
    missing_at_.store(mapped, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace uvm::preload
