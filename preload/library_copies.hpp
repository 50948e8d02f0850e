// Two copies of this library in one process, for example of a wheel and of a checkout. The process
// uses the copy that was loaded first. All others stay out.
#pragma once

#include <dlfcn.h>

#include <string>

namespace uvm::preload {

// This library as the loader knows it: its file, and where it lies. Needs no memory.
Dl_info own_library() noexcept;

// The file that this library was loaded from.
std::string own_path();

// The file of the copy that came first; empty: this is it.
std::string earlier_copy();

}  // namespace uvm::preload
