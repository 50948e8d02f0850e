// Reads the symbol tables of loaded libraries without the loader.
#pragma once

#include <link.h>

// Marks code that runs inside the first look-up of the process. A sanitizer's runtime may make that
// look-up before it is initialised, so the compiler must insert no call of memset or the like.
#if defined(__clang__)
#define UVMALLOC_CALLS_NOTHING __attribute__((no_builtin))
#else
#define UVMALLOC_CALLS_NOTHING __attribute__((optimize("no-tree-loop-distribute-patterns")))
#endif

namespace uvm::preload {

// Returns the address of a symbol that a library defines, in any version, or nullptr. `base` and
// `dynamic` are the library's load address and dynamic section. Does not support the kernel's
// library (linux-vdso.so), which has other tables.
void* symbol_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char* wanted) noexcept;

}  // namespace uvm::preload
