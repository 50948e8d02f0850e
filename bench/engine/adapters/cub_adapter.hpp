// cub::CachingDeviceAllocator with bins of powers of two from 512 B to 256 MiB, all cached without
// a limit, so that no size of the workloads goes to the driver each time. Owns the allocator.
#pragma once

#include <cuda_runtime_api.h>

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
  void free(void* block, std::size_t, cudaStream_t) { allocator_.DeviceFree(block); }

  // Nothing goes back to the driver, so the most is what there is.
  std::size_t peak_reserved_bytes() const {
    const auto& bytes = allocator_.cached_bytes.at(0);
    return bytes.free + bytes.live;
  }

 private:
  cub::CachingDeviceAllocator allocator_;
};

}  // namespace uvm::bench
