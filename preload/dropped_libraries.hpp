// Libraries of CUDA and HIP that the linker dropped, because this library defines every function
// that the program calls. `-luvmalloc -lcudart` with --as-needed does that, the default of some
// distributions.
#pragma once

namespace uvm::preload {

// Opens the newest library whose file name starts with `library` ("libcudart.so"), if an object of
// this process was linked to us. Then the functions that we forward to exist. If we are only
// preloaded, opens nothing: without us the program has no such library either. Returns whether it
// opened one. Thread-safe.
bool open_dropped_library(const char* library) noexcept;

}  // namespace uvm::preload
