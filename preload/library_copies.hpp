// Detects several copies of this library in one process, for example from a wheel and from a
// checkout. The copy that was loaded first is active; the others do nothing.
#pragma once

#include <dlfcn.h>

#include <string>

namespace uvm::preload {

// Returns the loader's record of this library: its file and load address. Allocates nothing.
Dl_info own_library() noexcept;

std::string own_path();

// Returns whether `address` is in this library.
bool is_of_own_library(const void* address) noexcept;

// Returns whether this library was preloaded: the global scope contains its functions before
// CUDA's, so that libraries that link to CUDA call this library.
bool is_first_for_calls() noexcept;

// Returns whether the global scope contains the interface of another library before that of this
// one: the program is linked to libuvmalloc.so, and this library was loaded later.
bool is_linked_to_another() noexcept;

// Returns the path of the copy that was loaded first, or an empty string if this is the first copy.
std::string earlier_copy();

}  // namespace uvm::preload
