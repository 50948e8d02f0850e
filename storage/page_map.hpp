// Which record owns an address: 2 MiB page -> T*. A two-level table over 48-bit addresses; reads
// take no lock and may run beside writes. Writers exclude each other outside (the allocator's
// lock). Leaves are never freed before the map, so a reader needs no protection but that of the
// record it finds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include <uvmalloc/storage/pages.hpp>

namespace uvm {

template <class T>
class PageMap {
 public:
  PageMap() : root_(std::make_unique<Root>()) {}
  ~PageMap() {
    for (auto& slot : *root_) delete slot.load(std::memory_order_relaxed);
  }
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  // nullptr: not ours.
  T* find(const void* address) const {
    std::uintptr_t page = address_of(address) >> kPageShift;
    if (page >> (kRootBits + kLeafBits)) return nullptr;
    Leaf* leaf = (*root_)[page >> kLeafBits].load(std::memory_order_acquire);
    if (leaf == nullptr) return nullptr;
    return (*leaf)[page & (kLeafSize - 1)].load(std::memory_order_acquire);
  }

  // Sets, or with nullptr clears, every page of [address, address + size_bytes); both are multiples
  // of 2 MiB.
  void set(const void* address, std::size_t size_bytes, T* value) {
    std::uintptr_t first = address_of(address) >> kPageShift;
    for (std::uintptr_t page = first; page < first + (size_bytes >> kPageShift); ++page) {
      std::atomic<Leaf*>& slot = (*root_)[page >> kLeafBits];
      Leaf* leaf = slot.load(std::memory_order_relaxed);
      if (leaf == nullptr) {
        leaf = new Leaf{};
        slot.store(leaf, std::memory_order_release);
      }
      (*leaf)[page & (kLeafSize - 1)].store(value, std::memory_order_release);
    }
  }

 private:
  static constexpr std::size_t kLeafBits = 13;
  static constexpr std::size_t kRootBits = 48 - kPageShift - kLeafBits;
  static constexpr std::size_t kLeafSize = std::size_t{1} << kLeafBits;
  using Leaf = std::array<std::atomic<T*>, kLeafSize>;
  using Root = std::array<std::atomic<Leaf*>, std::size_t{1} << kRootBits>;

  std::unique_ptr<Root> root_;
};

}  // namespace uvm
