#include <uvmalloc/preload/interpose.hpp>

#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstring>

namespace uvm::preload {
namespace {

// Finds a mapped library by the beginning of its file's name. Needs no memory: the callback of
// dl_iterate_phdr must not throw.
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

}  // namespace

void* next_definition(const char* symbol, const char* library) noexcept {
  if (void* found = dlsym(RTLD_NEXT, symbol)) return found;
  LibrarySearch search{library};
  dl_iterate_phdr(LibrarySearch::look, &search);
  if (search.path[0] == '\0') return nullptr;
  void* handle = dlopen(search.path, RTLD_NOLOAD | RTLD_LAZY);
  return handle != nullptr ? dlsym(handle, symbol) : nullptr;
}

}  // namespace uvm::preload
