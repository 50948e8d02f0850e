// The tables of symbols of loaded libraries, read without the loader's help.
#pragma once

#include <link.h>

// For code that runs inside the first look-up of the process, which may be that of a sanitizer's
// runtime before it is initialised. It calls no function that such a runtime replaces.
#if defined(__clang__)
#define UVMALLOC_CALLS_NOTHING __attribute__((no_builtin))
#else
#define UVMALLOC_CALLS_NOTHING __attribute__((optimize("no-tree-loop-distribute-patterns")))
#endif

namespace uvm::preload {

// The symbol that a library defines, of any version; nullptr if it defines none. `base` and
// `dynamic` are the library's load address and dynamic section. The kernel's own library
// (linux-vdso.so) has other tables: do not ask for it.
void* symbol_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char* wanted) noexcept;

}  // namespace uvm::preload
