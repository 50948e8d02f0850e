// Where the functions of CUDA's driver behind its interposed calls are. HIP has no second
// interface.
#pragma once

#include <cuda.h>

#include "preload/cuda/vendor.hpp"
#include "preload/interpose.hpp"
#include "preload/served_answers.hpp"

#define NEXT_OF_DRIVER(function) UVMALLOC_NEXT(function, "libcuda.so")

namespace uvm::preload::cuda {

// The current device of the thread; -1: none, and the driver is to say why.
inline int device_of_driver() noexcept {
  return device_by(NEXT_OF_DRIVER(cuCtxGetDevice));
}

// The device of a context; nullptr: of the current one. -1: none, and the driver is to say why.
int device_of(CUcontext context) noexcept;

// The device of a stream; that of stream 0 is the current one, and that of every stream is where
// the driver is older than the question.
inline int device_of_stream_by_driver(CUstream stream) noexcept {
  const int device = device_by(NEXT_OF_DRIVER(cuStreamGetDevice), stream);
  return device >= 0 ? device : device_of_driver();
}

#define POOL_QUESTIONS_OF_DRIVER                                           \
  uvm::preload::PoolQuestions {                                            \
    device_of_stream_by_driver, NEXT_OF_DRIVER(cuDeviceGetDefaultMemPool), \
        NEXT_OF_DRIVER(cuDeviceGetMemPool)                                 \
  }

}  // namespace uvm::preload::cuda
