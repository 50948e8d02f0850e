// Two MiB that an arena cuts into small objects, and the records of those objects that are out of
// the arena. Tables are reserved for the smallest objects and cost memory only where they are used.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <uvmalloc/allocator/block.hpp>

namespace uvm {

struct alignas(64) SmallSegment {  // so that each record is a line of the cache
  static constexpr std::size_t kGranules = kPageBytes / kGranule;

  char* base = nullptr;
  Span* span = nullptr;
  SegmentPlacement placement;
  PoolIndex pool = 0;
  std::uint16_t made = 0;  // records so far
  std::uint16_t free = 0;  // number of a free one, 0: none
  std::uint16_t live = 0;  // records in use
  // By granule: the number of the object that starts there, 0: none.
  std::array<std::atomic<std::uint16_t>, kGranules> starts;

  Block* record(std::uint16_t number) { return reinterpret_cast<Block*>(this + 1) + (number - 1); }
  const Block* record(std::uint16_t number) const {
    return reinterpret_cast<const Block*>(this + 1) + (number - 1);
  }
  std::size_t granule_of(const void* address) const {
    return (address_of(address) & (kPageBytes - 1)) / kGranule;
  }

  Block* add(char* address, std::size_t size_bytes);
  void remove(Block* block);
};

// Segments, used again and never freed before the store. Guarded by the allocator's lock.
class SmallSegmentStore {
 public:
  SmallSegmentStore() = default;
  ~SmallSegmentStore();
  SmallSegmentStore(const SmallSegmentStore&) = delete;
  SmallSegmentStore& operator=(const SmallSegmentStore&) = delete;

  SmallSegment* make(char* base, Span* span, PoolIndex pool, const SegmentPlacement& placement);
  void drop(SmallSegment* segment);

  // At most: tables that are not used cost nothing.
  std::size_t bytes() const;

 private:
  std::vector<SmallSegment*> all_;
  std::vector<SmallSegment*> free_;
};

}  // namespace uvm
