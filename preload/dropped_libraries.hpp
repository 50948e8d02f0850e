// Opens CUDA and HIP libraries that the linker dropped because this library defines every function
// that the program calls. `-luvmalloc -lcudart` with --as-needed (default of some distributions)
// drops libcudart.so.
#pragma once

namespace uvm::preload {

// Opens the newest library with a file name that starts with `library` ("libcudart.so"), if an
// object of this process was linked to libuvmalloc.so. Then uvmalloc can forward calls to the
// opened library. If libuvmalloc.so is only preloaded, opens nothing: without uvmalloc the program
// has no such library either. Returns whether it opened one. Thread-safe.
bool open_dropped_library(const char* library) noexcept;

}  // namespace uvm::preload
