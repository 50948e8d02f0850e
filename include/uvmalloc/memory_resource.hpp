// Makes an allocator usable as a std::pmr::memory_resource: memory of one memory kind for one
// device and one stream. The allocator must outlive the resource. Thread-safe. Facade::kHost suits
// containers that the host fills and devices read. With Facade::kDevice the next request on the
// stream may use freed memory at once. So record the uses of other streams (record_use), and wait
// for the stream before the host reads or writes.
//
// Each allocation is a block of at least 512 bytes. A container with a node for each element (map,
// list, unordered_map) needs a std::pmr pool resource in front. This resource has no pool, because
// a freed block waits for the streams recorded on it, but a pool would reuse a node at once.
#pragma once

#include <cstddef>
#include <memory_resource>

#include <uvmalloc/allocator.hpp>

namespace uvm {

class ManagedMemoryResource final : public std::pmr::memory_resource {
 public:
  // Throws std::invalid_argument if the device does not exist. Only Facade::kDevice uses `stream`.
  explicit ManagedMemoryResource(CachingManagedAllocator& allocator, Facade facade = Facade::kHost,
                                 int device = 0, StreamHandle stream = nullptr);

  CachingManagedAllocator& allocator() const { return *allocator_; }
  Facade facade() const { return facade_; }
  int device() const { return device_; }
  StreamHandle stream() const { return stream_; }

 private:
  // Returns a block of `size_bytes` bytes, even for 0. Throws OutOfMemoryError, a std::bad_alloc,
  // and std::invalid_argument if the alignment is not a power of two or is above 2 MiB.
  void* do_allocate(std::size_t size_bytes, std::size_t alignment_bytes) override;
  // If the address is not the start of a live block, nothing is freed and one line is logged.
  void do_deallocate(void* address, std::size_t size_bytes, std::size_t alignment_bytes) override;
  // Resources are equal if their allocator, memory kind, device and stream are equal. Only the
  // allocator matters to a free, but a container must not take over memory meant for another use.
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  CachingManagedAllocator* allocator_;
  Facade facade_;
  int device_;
  StreamHandle stream_;
};

// Frees the block that starts at `address`, like CachingManagedAllocator::free(). Also logs if the
// address does not belong to the allocator, because a resource's deallocate() returns no result.
void free_or_log(CachingManagedAllocator& allocator, void* address) noexcept;
// Same as free_or_log(), but the memory is not used again before the current work on `stream` of
// `device` is over. Waits for the stream if there is no memory to record its use.
void free_after(CachingManagedAllocator& allocator, void* address, int device,
                StreamHandle stream) noexcept;

}  // namespace uvm
