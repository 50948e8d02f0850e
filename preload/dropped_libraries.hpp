// CUDA's and HIP's libraries that a linker has left out of a program because this library defines
// all of their functions that the program calls: `-luvmalloc -lcudart` with --as-needed, which is
// the default of some distributions.
#pragma once

namespace uvm::preload {

// Opens the newest library whose file name starts with `library` ("libcudart.so") if something in
// this process was linked to us, so that the functions behind our own exist. A preloaded library
// opens nothing: the program has no such library without us either. Returns whether one was opened.
// Thread-safe.
bool open_dropped_library(const char* library) noexcept;

}  // namespace uvm::preload
