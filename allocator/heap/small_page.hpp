// The small objects of a page of two MiB that are out of the arenas which have parts of it, and
// their records. Tables are reserved for the smallest objects and cost memory only where they are
// used.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <uvmalloc/allocator/heap/block.hpp>

namespace uvm {

struct SharedPage;

struct alignas(64) SmallPage {  // so that each record is a line of the cache
  static constexpr std::size_t kGranules = kPageBytes / kGranule;

  SharedPage* shared = nullptr;
  std::uint16_t runs = 0;  // parts that arenas have
  std::uint16_t made = 0;  // records so far
  std::uint16_t free = 0;  // number of a free one, 0: none
  // By granule: the number of the object that starts there, 0: none.
  std::array<std::atomic<std::uint16_t>, kGranules> starts;

  Block* record(std::uint16_t number) { return reinterpret_cast<Block*>(this + 1) + (number - 1); }
  static std::size_t granule_of(const void* address) {
    return (address_of(address) & (kPageBytes - 1)) / kGranule;
  }

  // The object that starts at an address of the page; nullptr: none does. May run beside changes of
  // others, and where the record is another page's by now.
  Block* at(const void* address) {
    const std::uint16_t number = starts[granule_of(address)].load(std::memory_order_acquire);
    if (number == 0) return nullptr;
    Block* object = record(number);
    return object->starts_at(address) ? object : nullptr;
  }
  // The object that holds it. Objects leave no page.
  Block* with(const void* address);

  Block* add(char* address, std::size_t size_bytes, PoolIndex pool);
  void remove(Block* object);

  // Those in a block of the page, by address.
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

// Such pages, used again and never freed before the store. Guarded by the allocator's lock.
class SmallPageStore {
 public:
  SmallPageStore() = default;
  ~SmallPageStore();
  SmallPageStore(const SmallPageStore&) = delete;
  SmallPageStore& operator=(const SmallPageStore&) = delete;

  SmallPage* make(SharedPage* shared);
  // One without objects.
  void drop(SmallPage* page);

  // At most: tables that are not used cost nothing.
  std::size_t bytes() const;

 private:
  std::vector<SmallPage*> all_;
  std::vector<SmallPage*> free_;
};

}  // namespace uvm
