// A map from 2 MiB pages to entries: a two-level table over 48-bit addresses. find() takes no lock
// and may run concurrently with any function. Callers of each() hold a lock of the map's owner.
// Entries live as long as the map, so a reader only has to protect the contents of an entry.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "storage/pages.hpp"

namespace uvm {

template <class Entry>
class PageMap {
 public:
  PageMap() : root_(std::make_unique<Root>()) {}
  ~PageMap() {
    for (auto& slot : *root_) delete slot.load(std::memory_order_relaxed);
  }
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  // Returns the entry of the page that holds `address`, or nullptr if the page has no leaf yet.
  [[gnu::always_inline]] Entry* find(const void* address) const {
    std::uintptr_t page = address_of(address) >> kPageShift;
    if (page >> (kRootBits + kLeafBits)) return nullptr;
    Leaf* leaf = (*root_)[page >> kLeafBits].load(std::memory_order_acquire);
    if (leaf == nullptr) return nullptr;
    return &(*leaf)[page & (kLeafSize - 1)];
  }

  // Visits the entry of every page of [address, address + size_bytes), both multiples of 2 MiB. A
  // new entry is Entry{}. Throws std::bad_alloc if memory runs out, perhaps after some visits, or
  // before any visit if an address has more than 48 bits.
  template <class Visit>
  void each(const void* address, std::size_t size_bytes, Visit visit) {
    const std::uintptr_t first = address_of(address) >> kPageShift;
    const std::uintptr_t end = first + (size_bytes >> kPageShift);
    if (end > std::uintptr_t{1} << (kRootBits + kLeafBits)) throw std::bad_alloc();
    for (std::uintptr_t page = first; page < end; ++page) {
      std::atomic<Leaf*>& slot = (*root_)[page >> kLeafBits];
      Leaf* leaf = slot.load(std::memory_order_relaxed);
      if (leaf == nullptr) {
        leaf = new Leaf{};
        slot.store(leaf, std::memory_order_release);
      }
      visit((*leaf)[page & (kLeafSize - 1)]);
    }
  }

 private:
  static constexpr std::size_t kLeafBits = 13;
  static constexpr std::size_t kRootBits = 48 - kPageShift - kLeafBits;
  static constexpr std::size_t kLeafSize = std::size_t{1} << kLeafBits;
  using Leaf = std::array<Entry, kLeafSize>;
  using Root = std::array<std::atomic<Leaf*>, std::size_t{1} << kRootBits>;

  std::unique_ptr<Root> root_;
};

}  // namespace uvm
