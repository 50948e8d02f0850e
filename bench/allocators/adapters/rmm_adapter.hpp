// RMM's pool_memory_resource over its cuda_memory_resource. The pool starts with size 0 and doubles
// when it grows. Frees with size and stream, as its interface requires. Owns both resources.
#pragma once

// RMM 25.10 uses std::vector and std::string without naming their headers.
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include <cstddef>

#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

#include "../request.hpp"

namespace uvm::bench {

class RmmAdapter {
 public:
  static constexpr const char* kName = "rmm";
  static constexpr bool kMeasuresMetadata = false;
  static std::string version() { return UVMALLOC_BENCH_RMM_VERSION; }

  explicit RmmAdapter(const Request&) : pool_(&device_, 0) {}

  void* allocate(std::size_t size_bytes, cudaStream_t stream) {
    return pool_.allocate_async(size_bytes, rmm::cuda_stream_view{stream});
  }
  void free(void* block, std::size_t size_bytes, cudaStream_t stream) {
    pool_.deallocate_async(block, size_bytes, rmm::cuda_stream_view{stream});
  }

  // The pool never shrinks.
  std::size_t peak_reserved_bytes() const { return pool_.pool_size(); }

 private:
  rmm::mr::cuda_memory_resource device_;
  rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource> pool_;
};

}  // namespace uvm::bench
