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
  return device_by(NEXT_OF_DRIVER(cuCtxGetDevice));
}

}  // namespace uvm::preload::cuda
