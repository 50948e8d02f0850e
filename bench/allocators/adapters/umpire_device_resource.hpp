// Device memory as the resource "DEVICE" of an Umpire that was built for the host, with the factory
// for Umpire's registry. Stateless.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <new>
#include <string>

#include <umpire/resource/MemoryResource.hpp>
#include <umpire/resource/MemoryResourceFactory.hpp>

namespace uvm::bench {

class UmpireDeviceResource final : public umpire::resource::MemoryResource {
 public:
  using MemoryResource::MemoryResource;

  void* allocate(std::size_t size_bytes) override {
    void* block = nullptr;
    if (cudaMalloc(&block, size_bytes) != cudaSuccess) throw std::bad_alloc();
    return block;
  }
  void deallocate(void* block, std::size_t) override { cudaFree(block); }
  umpire::Platform getPlatform() noexcept override { return umpire::Platform::host; }
  bool isAccessibleFrom(umpire::Platform) noexcept override { return false; }
};

class UmpireDeviceResourceFactory final : public umpire::resource::MemoryResourceFactory {
 public:
  static constexpr const char* kResource = "DEVICE";

  bool isValidMemoryResourceFor(const std::string& name) noexcept override {
    return name == kResource;
  }
  std::unique_ptr<umpire::resource::MemoryResource> create(const std::string& name,
                                                           int id) override {
    return create(name, id, getDefaultTraits());
  }
  std::unique_ptr<umpire::resource::MemoryResource> create(
      const std::string& name, int id, umpire::MemoryResourceTraits traits) override {
    return std::make_unique<UmpireDeviceResource>(name, id, traits);
  }
  umpire::MemoryResourceTraits getDefaultTraits() override {
    umpire::MemoryResourceTraits traits;
    traits.id = 0;
    traits.tracking = false;
    return traits;
  }
};

}  // namespace uvm::bench
