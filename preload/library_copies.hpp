// Several copies of this library in one process, for example from a wheel and from a checkout. The
// first copy that was loaded is active; the others do nothing.
#pragma once

#include <dlfcn.h>

#include <string>

namespace uvm::preload {

// The loader's record of this library: its file and load address. Allocates nothing.
Dl_info own_library() noexcept;

// The path of this library's file.
std::string own_path();

// The path of the copy that was loaded first; empty: this is the first.
std::string earlier_copy();

}  // namespace uvm::preload
