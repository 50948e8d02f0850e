// The twin of preload/hip/vendor.hpp: where the functions behind the interposed calls of CUDA are,
// and the question for the current device that they share.
#pragma once

#include <cuda_runtime_api.h>

#include "preload/interpose.hpp"
#include "preload/served_answers.hpp"

#define NEXT_OF_RUNTIME(function) UVMALLOC_NEXT(function, "libcudart.so")
#define NEXT_OF_RUNTIME_AS(function, type) UVMALLOC_NEXT_AS(function, "libcudart.so", type)

namespace uvm::preload::cuda {

inline constexpr auto kVendor = ServedMemory::Vendor::kCuda;
// CUDA frees each kind of memory by calls of its own.
inline constexpr auto kFreesOfDevice = ServedMemory::Frees::kAllButPinned;
inline constexpr auto kFreesOfHost = ServedMemory::Frees::kPinned;

// The current device of the thread; -1: none, and CUDA is to say why.
inline int device_of_runtime() noexcept {
  return device_by(NEXT_OF_RUNTIME(cudaGetDevice));
}

// The current context of the thread, whose end ends memory that is allocated now; nullptr: none.
const void* context_of_thread() noexcept;

// The device of a stream; that of stream 0 is the current one.
inline int device_of_stream(cudaStream_t stream) noexcept {
  const int device = device_by(NEXT_OF_RUNTIME(cudaStreamGetDevice), stream);
  return device >= 0 ? device : device_of_runtime();
}

#define POOL_QUESTIONS                                              \
  uvm::preload::PoolQuestions {                                     \
    device_of_stream, NEXT_OF_RUNTIME(cudaDeviceGetDefaultMemPool), \
        NEXT_OF_RUNTIME(cudaDeviceGetMemPool)                       \
  }

}  // namespace uvm::preload::cuda
