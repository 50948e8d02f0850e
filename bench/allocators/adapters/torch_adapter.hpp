// torch's CUDA allocator in this process, through c10's interface. A free gets only the pointer; an
// allocation names its stream, which saves the lookup of the current one. The process has only this
// one allocator, so a new adapter empties the allocator's cache and resets its peaks.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <cstddef>
#include <string>

#include "../request.hpp"

namespace uvm::bench {

class TorchAdapter {
 public:
  static constexpr const char* kName = "pytorch";
  static constexpr bool kMeasuresMetadata = false;
  static std::string version() { return TORCH_VERSION; }

  explicit TorchAdapter(const Request&) : allocator_(*c10::cuda::CUDACachingAllocator::get()) {
    allocator_.emptyCache();
    allocator_.resetPeakStats(0);
  }
  ~TorchAdapter() { allocator_.emptyCache(); }
  TorchAdapter(const TorchAdapter&) = delete;
  TorchAdapter& operator=(const TorchAdapter&) = delete;

  void* allocate(std::size_t size_bytes, cudaStream_t stream) {
    return allocator_.raw_alloc_with_stream(size_bytes, stream);
  }
  void free(void* block, std::size_t, cudaStream_t) { allocator_.raw_delete(block); }

  std::size_t peak_reserved_bytes() const {
    return static_cast<std::size_t>(allocator_.getDeviceStats(0).reserved_bytes[0].peak);
  }

 private:
  c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator_;
};

}  // namespace uvm::bench
