// Where the functions of CUDA's driver behind its interposed calls are. HIP has no second
// interface.
#pragma once

#include <cuda.h>

#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_answers.hpp>

#define NEXT_OF_DRIVER(function) UVMALLOC_NEXT(function, "libcuda.so")

namespace uvm::preload::cuda {

// The current device of the thread; -1: none, and the driver is to say why.
inline int device_of_driver() noexcept {
  CUdevice device = -1;
  const auto get = NEXT_OF_DRIVER(cuCtxGetDevice);
  return get != nullptr && get(&device) == CUDA_SUCCESS ? device : -1;
}

// From a device's default pool. The limits of other pools are the program's.
inline bool serve_from_pool_of_driver(const Asked& asked, CUdeviceptr* out, std::size_t size_bytes,
                                      CUmemoryPool pool, StreamHandle stream) noexcept {
  if (!wants_to_serve()) return false;
  const auto get = NEXT_OF_DRIVER(cuDeviceGetDefaultMemPool);
  const int device = device_of_driver();
  CUmemoryPool default_pool = nullptr;
  const bool is_default = device >= 0 && get != nullptr &&
                          get(&default_pool, device) == CUDA_SUCCESS && pool == default_pool;
  return is_default ? serve(asked, out, size_bytes, stream) : leave(asked.call);
}

}  // namespace uvm::preload::cuda
