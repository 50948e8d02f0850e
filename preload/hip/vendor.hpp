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

#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_answers.hpp>

#define NEXT_OF_RUNTIME(function) UVMALLOC_NEXT(function, "libamdhip64.so")
#define NEXT_OF_RUNTIME_AS(function, type) UVMALLOC_NEXT_AS(function, "libamdhip64.so", type)

namespace uvm::preload::hip {

inline constexpr auto kVendor = ServedMemory::Vendor::kHip;

// The current device of the thread; -1: none, and HIP is to say why.
inline int device_of_runtime() noexcept {
  int device = -1;
  const auto get = NEXT_OF_RUNTIME(hipGetDevice);
  return get != nullptr && get(&device) == hipSuccess ? device : -1;
}

// From a device's default pool. The limits of other pools are the program's.
inline bool serve_from_pool(const Asked& asked, void** out, std::size_t size_bytes,
                            hipMemPool_t pool, StreamHandle stream) noexcept {
  if (!wants_to_serve()) return false;
  const auto get = NEXT_OF_RUNTIME(hipDeviceGetDefaultMemPool);
  const int device = device_of_runtime();
  hipMemPool_t default_pool = nullptr;
  const bool is_default = device >= 0 && get != nullptr &&
                          get(&default_pool, device) == hipSuccess && pool == default_pool;
  return is_default ? serve(asked, out, size_bytes, stream) : leave(asked.call);
}

}  // namespace uvm::preload::hip
