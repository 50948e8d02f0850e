// cub::CachingDeviceAllocator with bins of powers of two from 512 B to 256 MiB, all cached without
// a limit. Only larger blocks, in some traces, go to the driver each time. Owns the allocator.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cub/util_allocator.cuh>
#include <cub/version.cuh>
#include <new>
#include <string>

#include "../request.hpp"

namespace uvm::bench {

class CubAdapter {
 public:
  static constexpr const char* kName = "cub";
  static constexpr bool kMeasuresMetadata = false;
  static std::string version() {
    return std::to_string(CUB_MAJOR_VERSION) + "." + std::to_string(CUB_MINOR_VERSION) + "." +
           std::to_string(CUB_SUBMINOR_VERSION);
  }

  explicit CubAdapter(const Request&)
      : allocator_(2, 9, 28, cub::CachingDeviceAllocator::INVALID_SIZE) {}

  void* allocate(std::size_t size_bytes, cudaStream_t stream) {
    void* block = nullptr;
    if (allocator_.DeviceAllocate(&block, size_bytes, stream) != cudaSuccess)
      throw std::bad_alloc();
    return block;
  }
  void free(void* block, std::size_t size_bytes, cudaStream_t) {
    // Only blocks larger than all bins go back to the driver, so the peak comes before such a free.
    if (size_bytes > kLargestBinBytes) peak_bytes_ = peak_reserved_bytes();
    allocator_.DeviceFree(block);
  }

  std::size_t peak_reserved_bytes() const {
    auto found = allocator_.cached_bytes.find(0);
    if (found == allocator_.cached_bytes.end()) return peak_bytes_;
    return std::max(peak_bytes_, found->second.free + found->second.live);
  }

 private:
  static constexpr std::size_t kLargestBinBytes = std::size_t{1} << 28;

  std::size_t peak_bytes_ = 0;
  cub::CachingDeviceAllocator allocator_;
};

}  // namespace uvm::bench
