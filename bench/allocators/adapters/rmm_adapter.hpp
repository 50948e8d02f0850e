// RMM's pool_memory_resource over its cuda_memory_resource. The pool starts with size 0 and doubles
// when it grows. Frees with size and stream, as its interface requires.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include <rmm/aligned.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "../request.hpp"

namespace uvm::bench {

class RmmAdapter {
 public:
  static constexpr const char* kName = "rmm";
  static constexpr bool kMeasuresMetadata = false;
  static std::string version() { return UVMALLOC_BENCH_RMM_VERSION; }

  explicit RmmAdapter(const Request&) : pool_(rmm::mr::cuda_memory_resource{}, 0) {}

  void* allocate(std::size_t size_bytes, cudaStream_t stream) {
    return pool_.allocate(cuda::stream_ref{stream}, size_bytes, kAlignmentBytes);
  }
  void free(void* block, std::size_t size_bytes, cudaStream_t stream) {
    pool_.deallocate(cuda::stream_ref{stream}, block, size_bytes, kAlignmentBytes);
  }

  // The pool never shrinks.
  std::size_t peak_reserved_bytes() const { return pool_.pool_size(); }

 private:
  static constexpr std::size_t kAlignmentBytes = rmm::CUDA_ALLOCATION_ALIGNMENT;

  rmm::mr::pool_memory_resource pool_;
};

}  // namespace uvm::bench
