// Memory for pools of a torch that keeps its own allocators (uvmalloc/pools.py). Torch calls these
// functions as a CUDAPluggableAllocator. Any thread may call.
#pragma once

#include <sys/types.h>

// Returns memory of the device for the stream, or nullptr if there is no memory; then torch raises
// its own error. The log says why (UVMALLOC_LOG=info).
extern "C" __attribute__((visibility("default"))) void* uvmalloc_torch_allocate(
    ssize_t size_bytes, int device, void* stream) noexcept;
// Frees such memory. Work that is queued on its stream may still use it.
extern "C" __attribute__((visibility("default"))) void uvmalloc_torch_free(void* address,
                                                                           ssize_t size_bytes,
                                                                           int device,
                                                                           void* stream) noexcept;
