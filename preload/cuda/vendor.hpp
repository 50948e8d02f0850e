// The twin of preload/hip/vendor.hpp: where the functions behind the interposed calls of CUDA are,
// and what the two interfaces ask of their runtime for them.
#pragma once

#include <cuda_runtime_api.h>

#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/served_answers.hpp>

#define NEXT_OF_RUNTIME(function) UVMALLOC_NEXT(function, "libcudart.so")
#define NEXT_OF_RUNTIME_AS(function, type) UVMALLOC_NEXT_AS(function, "libcudart.so", type)

namespace uvm::preload::cuda {

inline constexpr auto kVendor = ServedMemory::Vendor::kCuda;

inline int device_of_runtime() noexcept {
  int device = -1;
  const auto get = NEXT_OF_RUNTIME(cudaGetDevice);
  return get != nullptr && get(&device) == cudaSuccess ? device : -1;
}

// From a device's default pool. The limits of other pools are the program's.
inline bool serve_from_pool(const Asked& asked, void** out, std::size_t size_bytes,
                            cudaMemPool_t pool, StreamHandle stream) noexcept {
  if (!wants_to_serve()) return false;
  const auto get = NEXT_OF_RUNTIME(cudaDeviceGetDefaultMemPool);
  const int device = device_of_runtime();
  cudaMemPool_t default_pool = nullptr;
  const bool is_default = device >= 0 && get != nullptr &&
                          get(&default_pool, device) == cudaSuccess && pool == default_pool;
  return is_default ? serve(asked, out, size_bytes, stream) : leave(asked.call);
}

}  // namespace uvm::preload::cuda
