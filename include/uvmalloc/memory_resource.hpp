// An allocator as a std::pmr::memory_resource: memory of one facade for one device and one stream.
// Owns nothing: the allocator must outlive it. Thread-safe. Facade::kHost suits containers that the
// host fills and devices read. What containers of Facade::kDevice free is used again at once by
// whatever is next on their stream: record the uses of other streams (record_use), and wait for the
// stream before the host reads or writes.
//
// Every allocation is a block of its own, which takes 512 bytes at least. A container with a node
// for each element (map, list, unordered_map) needs a std::pmr pool resource between it and this
// one. This resource has no such pool: what is freed waits for the streams recorded on it, and a
// pool would use a node again at once.
#pragma once

#include <cstddef>
#include <memory_resource>

#include <uvmalloc/allocator.hpp>

namespace uvm {

class ManagedMemoryResource final : public std::pmr::memory_resource {
 public:
  // std::invalid_argument: the device does not exist. `stream` counts for Facade::kDevice only.
  explicit ManagedMemoryResource(CachingManagedAllocator& allocator, Facade facade = Facade::kHost,
                                 int device = 0, StreamHandle stream = nullptr);

  CachingManagedAllocator& allocator() const { return *allocator_; }
  Facade facade() const { return facade_; }
  int device() const { return device_; }
  StreamHandle stream() const { return stream_; }

 private:
  // Throws OutOfMemoryError, which is a std::bad_alloc; std::invalid_argument for an alignment that
  // is no power of two or above 2 MiB (allocate_aligned). 0 bytes: a block like any other.
  void* do_allocate(std::size_t size_bytes, std::size_t alignment_bytes) override;
  // An address that is not the start of a block in use is logged, and nothing is freed.
  void do_deallocate(void* address, std::size_t size_bytes, std::size_t alignment_bytes) override;
  // Equal: the same allocator, facade, device and stream. Stricter than freeing needs: a container
  // must not take over memory that is wanted elsewhere.
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  CachingManagedAllocator* allocator_;
  Facade facade_;
  int device_;
  StreamHandle stream_;
};

}  // namespace uvm
