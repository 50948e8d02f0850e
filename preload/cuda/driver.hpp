// Where the functions of CUDA's driver behind its interposed calls are. HIP has no second
// interface.
#pragma once

#include <cuda.h>

#include <uvmalloc/preload/interpose.hpp>

#define NEXT_OF_DRIVER(function) UVMALLOC_NEXT(function, "libcuda.so")

namespace uvm::preload::cuda {

// The current device of the thread; -1: none, and the driver is to say why.
inline int device_of_driver() noexcept {
  CUdevice device = -1;
  const auto get = NEXT_OF_DRIVER(cuCtxGetDevice);
  return get != nullptr && get(&device) == CUDA_SUCCESS ? device : -1;
}

}  // namespace uvm::preload::cuda
