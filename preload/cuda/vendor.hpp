// The twin of preload/hip/vendor.hpp: where the functions behind the interposed calls of CUDA are,
// and the question for the current device that they share.
#pragma once

#include <cuda_runtime_api.h>

#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_answers.hpp>

#define NEXT_OF_RUNTIME(function) UVMALLOC_NEXT(function, "libcudart.so")
#define NEXT_OF_RUNTIME_AS(function, type) UVMALLOC_NEXT_AS(function, "libcudart.so", type)

namespace uvm::preload::cuda {

inline constexpr auto kVendor = ServedMemory::Vendor::kCuda;

// The current device of the thread; -1: none, and CUDA is to say why.
inline int device_of_runtime() noexcept {
  return device_by(NEXT_OF_RUNTIME(cudaGetDevice));
}

}  // namespace uvm::preload::cuda
