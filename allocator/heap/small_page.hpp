// Finds the small objects that arenas have handed out in one 2 MiB page, and holds their records.
// The tables have room for a page full of the smallest objects; only the parts in use cost memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/heap/block.hpp"

namespace uvm {

struct PackedPage;

struct alignas(64) SmallPage {  // so that each record is a cache line
  static constexpr std::size_t kGranules = kPageBytes / kGranule;

  PackedPage* shared = nullptr;
  std::uint16_t runs = 0;  // blocks of the page that arenas hold
  std::uint16_t made = 0;  // records made so far
  std::uint16_t free = 0;  // number of the first free record; 0: none
  // By granule: the number of the object that starts in the granule; 0: none.
  std::array<std::atomic<std::uint16_t>, kGranules> starts;

  Block* record(std::uint16_t number) { return reinterpret_cast<Block*>(this + 1) + (number - 1); }
  static std::size_t granule_of(const void* address) {
    return (address_of(address) & (kPageBytes - 1)) / kGranule;
  }

  // Returns the object that starts at an address of the page, or nullptr. May run while other
  // objects change, and after this record was reused for another page.
  Block* at(const void* address) {
    const std::uint16_t number = starts[granule_of(address)].load(std::memory_order_acquire);
    if (number == 0) return nullptr;
    Block* object = record(number);
    return object->starts_at(address) ? object : nullptr;
  }
  // Returns the object that holds the address, or nullptr. An object never crosses a page boundary.
  Block* with(const void* address);

  Block* add(char* address, std::size_t size_bytes, PoolIndex pool);
  void remove(Block* object);

  // Visits the objects in `part`, a block of the page, in the order of addresses.
  template <class Visit>
  void each(const Block& part, Visit visit) {
    const std::size_t first = granule_of(part.address());
    for (std::size_t granule = first; granule < first + part.size_bytes() / kGranule; ++granule) {
      if (std::uint16_t number = starts[granule].load(std::memory_order_relaxed); number != 0) {
        visit(*record(number));
      }
    }
  }
};

// Owns the SmallPage records and reuses them. Guarded by the state lock.
class SmallPageStore {
 public:
  SmallPageStore() = default;
  ~SmallPageStore();
  SmallPageStore(const SmallPageStore&) = delete;
  SmallPageStore& operator=(const SmallPageStore&) = delete;

  SmallPage* make(PackedPage* shared);
  // Keeps the record for reuse. The page must have no objects.
  void drop(SmallPage* page);

  // Returns an upper bound, because parts of the tables that are not in use cost nothing.
  std::size_t bytes() const;

 private:
  std::vector<SmallPage*> all_;
  std::vector<SmallPage*> free_;
};

}  // namespace uvm
