#include "pytorch/interpose/pool_calls.hpp"

#include <cstddef>
#include <exception>

#include <uvmalloc/memory_resource.hpp>
#include <uvmalloc/registry.hpp>
#include "allocator/process/process_allocator.hpp"
#include "runtime/log.hpp"

void* uvmalloc_torch_allocate(ssize_t size_bytes, int device, void* stream) noexcept {
  try {
    uvm::CachingManagedAllocator* allocator = uvm::activate_process_allocator().allocator;
    if (allocator == nullptr || size_bytes <= 0) return nullptr;
    return allocator->allocate(uvm::Facade::kDevice, device, static_cast<std::size_t>(size_bytes),
                               stream);
  } catch (const std::exception& error) {
    uvm::log(uvm::LogLevel::kInfo, "a pool gets no memory: {}", error.what());
    return nullptr;
  }
}

void uvmalloc_torch_free(void* address, ssize_t /*size_bytes*/, int /*device*/,
                         void* /*stream*/) noexcept {
  if (uvm::CachingManagedAllocator* allocator = uvm::process_allocator()) {
    uvm::free_or_log(*allocator, address);
  }
}
