// Umpire's QuickPool over cudaMalloc, without introspection, in its default configuration.
// QuickPool has no streams and is not thread-safe: for a request with "threads=2", Umpire's
// ThreadSafeAllocator wraps it. Umpire is built for the host, and this adapter provides the device
// resource, because Umpire's own needs nvcc. Umpire's allocators live as long as the process; a new
// adapter creates new ones and releases the memory of the previous ones.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include <umpire/Allocator.hpp>
#include <umpire/ResourceManager.hpp>
#include <umpire/resource/MemoryResourceRegistry.hpp>
#include <umpire/strategy/QuickPool.hpp>
#include <umpire/strategy/ThreadSafeAllocator.hpp>
#include <umpire/util/wrap_allocator.hpp>

#include "../request.hpp"
#include "umpire_device_resource.hpp"

namespace uvm::bench {

class UmpireAdapter {
 public:
  static constexpr const char* kName = "umpire";
  static constexpr bool kMeasuresMetadata = false;
  static std::string version() {
    return std::to_string(UMPIRE_VERSION_MAJOR) + "." + std::to_string(UMPIRE_VERSION_MINOR) + "." +
           std::to_string(UMPIRE_VERSION_PATCH);
  }

  explicit UmpireAdapter(const Request& request) : allocator_(make(request)) {}
  ~UmpireAdapter() { quick_pool_->release(); }
  UmpireAdapter(const UmpireAdapter&) = delete;
  UmpireAdapter& operator=(const UmpireAdapter&) = delete;

  void* allocate(std::size_t size_bytes, cudaStream_t) { return allocator_.allocate(size_bytes); }
  void free(void* block, std::size_t, cudaStream_t) { allocator_.deallocate(block); }

  std::size_t peak_reserved_bytes() const { return quick_pool_->getActualHighwaterMark(); }

 private:
  using QuickPool = umpire::strategy::QuickPool;

  umpire::Allocator make(const Request& request) {
    static int made = 0;
    const std::string name = "bench" + std::to_string(made++);
    umpire::ResourceManager& resources = umpire::ResourceManager::getInstance();
    static const umpire::Allocator device = [&] {
      umpire::resource::MemoryResourceRegistry::getInstance().registerMemoryResource(
          std::make_unique<UmpireDeviceResourceFactory>());
      return resources.makeResource(UmpireDeviceResourceFactory::kResource);
    }();
    umpire::Allocator pool = resources.makeAllocator<QuickPool, false>(name, device);
    quick_pool_ = umpire::util::unwrap_allocator<QuickPool>(pool);
    if (request.number("threads", 1) == 1) return pool;
    return resources.makeAllocator<umpire::strategy::ThreadSafeAllocator, false>(name + "_safe",
                                                                                 pool);
  }

  QuickPool* quick_pool_ = nullptr;
  umpire::Allocator allocator_;
};

}  // namespace uvm::bench
