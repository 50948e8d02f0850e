#include <uvmalloc/allocator/memory_resource.hpp>
#include <uvmalloc/runtime/counting_runtime.hpp>

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include <uvmalloc/allocator/process/aligned_allocation.hpp>

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
  // 0 would mean the allocator's own alignment there; here it is no power of two.
  if (alignment_bytes == 0) throw std::invalid_argument("an alignment of 0 bytes cannot be had");
  return allocate_aligned(*allocator_, facade_, device_, std::max<std::size_t>(size_bytes, 1),
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

}  // namespace uvm
