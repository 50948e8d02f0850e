// Detects several copies of this library in one process, for example from a wheel and from a
// checkout. The copy that was loaded first is active; the others do nothing.
#pragma once

#include <dlfcn.h>

#include <string>

namespace uvm::preload {

// Returns the loader's record of this library: its file and load address. Allocates nothing.
Dl_info own_library() noexcept;

std::string own_path();

// Returns the path of the copy that was loaded first, or an empty string if this is the first copy.
std::string earlier_copy();

}  // namespace uvm::preload
