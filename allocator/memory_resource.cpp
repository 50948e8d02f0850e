#include <uvmalloc/memory_resource.hpp>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include <fmt/format.h>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/inspection.hpp>
#include "runtime/log.hpp"

namespace uvm {

ManagedMemoryResource::ManagedMemoryResource(CachingManagedAllocator& allocator, Facade facade,
                                             int device, StreamHandle stream)
    : allocator_(&allocator), facade_(facade), device_(device), stream_(stream) {
  if (device < 0 || device >= allocator.inspection().runtime().device_count()) {
    throw std::invalid_argument(fmt::format("device {} does not exist; there are {}", device,
                                            allocator.inspection().runtime().device_count()));
  }
}

void* ManagedMemoryResource::do_allocate(std::size_t size_bytes, std::size_t alignment_bytes) {
  return allocator_->allocate_aligned(facade_, device_, std::max<std::size_t>(size_bytes, 1),
                                      alignment_bytes, stream_);
}

void ManagedMemoryResource::do_deallocate(void* address, std::size_t, std::size_t) {
  free_or_log(*allocator_, address);
}

bool ManagedMemoryResource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* same = dynamic_cast<const ManagedMemoryResource*>(&other);
  return same != nullptr && same->allocator_ == allocator_ && same->facade_ == facade_ &&
         same->device_ == device_ && same->stream_ == stream_;
}

void free_or_log(CachingManagedAllocator& allocator, void* address) noexcept {
  if (allocator.free(address) == FreeResult::kNotOurs) {
    log(LogLevel::kError,
        "deallocate({}): this resource did not allocate the memory; nothing was freed", address);
  }
}

void free_after(CachingManagedAllocator& allocator, void* address, int device,
                StreamHandle stream) noexcept {
  try {
    allocator.record_use(address, device, stream);
  } catch (const std::exception&) {
    // There is no memory to record the use, so wait for the stream instead.
    allocator.inspection().runtime().synchronize_stream(device, stream);
  }
  free_or_log(allocator, address);
}

}  // namespace uvm
