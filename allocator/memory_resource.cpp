#include <uvmalloc/memory_resource.hpp>

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace uvm {

ManagedMemoryResource::ManagedMemoryResource(CachingManagedAllocator& allocator, Facade facade,
                                             int device, StreamHandle stream)
    : allocator_(&allocator), facade_(facade), device_(device), stream_(stream) {
  if (device < 0 || device >= allocator.runtime().device_count()) {
    throw std::invalid_argument(fmt::format("device {} does not exist; there are {}", device,
                                            allocator.runtime().device_count()));
  }
}

void* ManagedMemoryResource::do_allocate(std::size_t size_bytes, std::size_t alignment_bytes) {
  return allocator_->allocate_aligned(facade_, device_, std::max<std::size_t>(size_bytes, 1),
                                      alignment_bytes, stream_);
}

void ManagedMemoryResource::do_deallocate(void* address, std::size_t, std::size_t) {
  allocator_->free_or_log(address);
}

bool ManagedMemoryResource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* same = dynamic_cast<const ManagedMemoryResource*>(&other);
  return same != nullptr && same->allocator_ == allocator_ && same->facade_ == facade_ &&
         same->device_ == device_ && same->stream_ == stream_;
}

}  // namespace uvm
