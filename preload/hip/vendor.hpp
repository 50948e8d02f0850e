// The twin of preload/cuda/vendor.hpp. The other files of this folder's namespace are made from
// preload/cuda when uvmalloc is built (hipify/README.md); own_calls.cpp has the calls that CUDA's
// runtime does not have.
#pragma once

// Without the overloads that the header adds for C++, which make a function's name ambiguous.
#ifndef __HIP_DISABLE_CPP_FUNCTIONS__
#define __HIP_DISABLE_CPP_FUNCTIONS__
#endif
#include <hip/hip_runtime_api.h>

// Deprecated functions are called by programs, and so they are interposed.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#include "preload/interpose.hpp"
#include "preload/served_answers.hpp"

#define NEXT_OF_RUNTIME(function) UVMALLOC_NEXT(function, "libamdhip64.so")
#define NEXT_OF_RUNTIME_AS(function, type) UVMALLOC_NEXT_AS(function, "libamdhip64.so", type)

namespace uvm::preload::hip {

inline constexpr auto kVendor = ServedMemory::Vendor::kHip;
// hipFree and hipHostFree are the same function.
inline constexpr auto kFreesOfDevice = ServedMemory::Frees::kAll;
inline constexpr auto kFreesOfHost = ServedMemory::Frees::kAll;

// The current device of the thread; -1: none, and HIP is to say why.
inline int device_of_runtime() noexcept {
  return device_by(NEXT_OF_RUNTIME(hipGetDevice));
}

// Contexts of HIP are its devices.
inline const void* context_of_thread() noexcept {
  return nullptr;
}

// The device of a stream; that of stream 0 is the current one.
inline int device_of_stream(hipStream_t stream) noexcept {
  const int device = device_by(NEXT_OF_RUNTIME(hipStreamGetDevice), stream);
  return device >= 0 ? device : device_of_runtime();
}

#define POOL_QUESTIONS                                             \
  uvm::preload::PoolQuestions {                                    \
    device_of_stream, NEXT_OF_RUNTIME(hipDeviceGetDefaultMemPool), \
        NEXT_OF_RUNTIME(hipDeviceGetMemPool)                       \
  }

}  // namespace uvm::preload::hip
