// Finds the blocks that start in a 2 MiB page. A page has 512 steps of 4 KiB, and at most one block
// starts in a step. The map itself stores two starts, and a short list stores up to four. All
// entries of the list are compared, without branches, because all are equally likely. If there are
// more starts, the page is cut into as few equal slots as possible so that no two starts share a
// slot. So blocks of one size cost one entry each. Block IDs are never 0.
//
// at() may run while other starts change; all other functions are guarded by the owner's lock. A
// reader may still use an outgrown table, so the map keeps all its tables until the map is
// destroyed. All tables together are smaller than twice the last one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <new>

#include "storage/pages.hpp"

namespace uvm {

class BlockStartMap {
 public:
  static constexpr std::size_t kStep = 4096;
  static constexpr std::size_t kSteps = kPageBytes / kStep;

  static std::size_t step_of(const void* address) {
    return (address_of(address) & (kPageBytes - 1)) / kStep;
  }

  BlockStartMap() = default;
  ~BlockStartMap() {
    for (Table* table = table_of(now()); table != nullptr;) {
      Table* outgrown = table->outgrown;
      ::operator delete(table);
      table = outgrown;
    }
  }
  BlockStartMap(const BlockStartMap&) = delete;
  BlockStartMap& operator=(const BlockStartMap&) = delete;

  // Returns the block that starts at a step, or 0. With a table of slots, returns the block that
  // starts anywhere in the step's slot.
  std::uint32_t at(std::size_t step) const {
    const std::uint64_t word = word_.load(std::memory_order_acquire);
    if (is_two(word)) {
      const Two two(word);
      return Two::id_at(two.first, step) | Two::id_at(two.second, step);
    }
    const Table* table = table_of(word);
    return table == nullptr ? 0 : table->at(step);
  }

  // Adds the start of a block at a step that has no start. `step_of_block` returns the step of a
  // block, given its ID. Returns the bytes of the tables that were made.
  template <class StepOfBlock>
  std::size_t add(std::size_t step, std::uint32_t block, StepOfBlock step_of_block) {
    const std::uint64_t word = now();
    Table* table = table_of(word);
    std::size_t made_bytes = 0;
    if (table == nullptr) {
      const Two two(word);
      const bool first_is_vacant = !Two::is_start(two.first);
      if ((first_is_vacant || !Two::is_start(two.second)) && block <= Two::kIds) [[likely]] {
        const std::uint32_t start = Two::start(step, block);
        word_.store(
            Two::word(first_is_vacant ? start : two.first, first_is_vacant ? two.second : start),
            std::memory_order_release);
        return 0;
      }
      table = grow_to_list(step, block, step_of_block);
      made_bytes = table->bytes();
    }
    while (!table->add(step, block)) {
      table = grow_to_slots(step, step_of_block);
      made_bytes += table->bytes();
    }
    return made_bytes;
  }
  // The step must have a start.
  void remove(std::size_t step) {
    const std::uint64_t word = now();
    if (Table* table = table_of(word)) {
      table->remove(step);
      return;
    }
    const Two two(word);
    word_.store(Two::word(two.first & mask(Two::step_of(two.first) != step),
                          two.second & mask(Two::step_of(two.second) != step)),
                std::memory_order_release);
  }

  // Returns the last block of this page that starts at or before a step, or 0.
  template <class StepOfBlock>
  std::uint32_t last_until(std::size_t step, StepOfBlock step_of_block) const {
    if (const Table* table = table_of(now()); table != nullptr && !table->is_list) {
      return table->last_until(step, step_of_block);
    }
    std::size_t last = 0;
    std::uint32_t found = 0;
    each_unordered([&](std::uint32_t block) {
      const std::size_t at_step = step_of_block(block);
      if (at_step > step || (found != 0 && at_step < last)) return;
      last = at_step;
      found = block;
    });
    return found;
  }

  // Visits all blocks, in the order of steps.
  template <class Visit, class StepOfBlock>
  void each(Visit visit, StepOfBlock step_of_block) const {
    std::array<std::uint32_t, kSteps> blocks{};
    bool any = false;
    each_unordered([&](std::uint32_t block) {
      blocks[step_of_block(block)] = block;
      any = true;
    });
    if (!any) return;
    for (std::uint32_t block : blocks) {
      if (block != 0) visit(block);
    }
  }

  // No thread may call at() meanwhile.
  void clear() {
    if (Table* table = table_of(now())) {
      for (std::size_t entry = 0; entry < table->count; ++entry) table->entries()[entry] = 0;
    } else {
      word_.store(0, std::memory_order_relaxed);
    }
  }

 private:
  // The word is 0, or the address of a table, or, if its lowest bit is set, two starts of 31 bits
  // each: 9 for the step, 22 for the block's ID. A missing start is all 0.
  struct Two {
    static constexpr unsigned kIdBits = 22;
    static constexpr std::uint32_t kIds = (1u << kIdBits) - 1;

    explicit Two(std::uint64_t word)
        : first(static_cast<std::uint32_t>(word) >> 1),
          second(static_cast<std::uint32_t>(word >> 33)) {}
    static std::uint64_t word(std::uint32_t first, std::uint32_t second) {
      return kTwo | std::uint64_t{first} << 1 | std::uint64_t{second} << 33;
    }
    static std::uint32_t start(std::size_t step, std::uint32_t block) {
      return static_cast<std::uint32_t>(step) << kIdBits | block;
    }
    static bool is_start(std::uint32_t start) { return (start & kIds) != 0; }
    static std::size_t step_of(std::uint32_t start) { return start >> kIdBits; }
    // Avoids a branch, which would be unpredictable.
    static std::uint32_t id_at(std::uint32_t start, std::size_t step) {
      return start & kIds & mask(step_of(start) == step);
    }
    std::uint32_t first;
    std::uint32_t second;
  };
  static constexpr std::uint64_t kTwo = 1;

  static std::uint32_t mask(bool holds) { return 0u - static_cast<std::uint32_t>(holds); }

  // Either an unordered list of entries (step and block ID), or an array of slots that each hold a
  // block ID.
  struct Table {
    static constexpr std::uint32_t kListed = 4;
    static constexpr unsigned kIdBits = 23;
    static constexpr std::uint32_t kIds = (1u << kIdBits) - 1;
    using Entry = std::atomic<std::uint32_t>;

    static Table* make(std::size_t count, bool is_list, unsigned shift, Table* outgrown) {
      void* memory = ::operator new(sizeof(Table) + count * sizeof(Entry));
      auto* table = new (memory) Table{outgrown, static_cast<std::uint16_t>(count), is_list, shift};
      for (std::size_t i = 0; i < count; ++i) new (table->entries() + i) Entry(0);
      return table;
    }

    Table* outgrown;
    std::uint16_t count;
    bool is_list;
    unsigned shift;  // a step's slot is the step shifted right by this

    Entry* entries() { return reinterpret_cast<Entry*>(this + 1); }
    const Entry* entries() const { return reinterpret_cast<const Entry*>(this + 1); }
    std::size_t bytes() const { return sizeof(Table) + count * sizeof(Entry); }
    std::uint32_t id_of(std::uint32_t entry) const { return is_list ? entry & kIds : entry; }

    std::uint32_t at(std::size_t step) const {
      if (!is_list) return entries()[step >> shift].load(std::memory_order_acquire);
      std::uint32_t found = 0;
      for (std::size_t i = 0; i < kListed; ++i) {
        const std::uint32_t start = entries()[i].load(std::memory_order_acquire);
        found |= start & kIds & mask(start >> kIdBits == step);
      }
      return found;
    }
    // Only for slots, which are in the order of steps. The step's own slot may hold a later start.
    template <class StepOfBlock>
    std::uint32_t last_until(std::size_t step, StepOfBlock step_of_block) const {
      for (std::size_t slot = (step >> shift) + 1; slot-- > 0;) {
        const std::uint32_t block = entries()[slot].load(std::memory_order_relaxed);
        if (block != 0 && step_of_block(block) <= step) return block;
      }
      return 0;
    }
    // Returns false if the table has no room.
    bool add(std::size_t step, std::uint32_t block) {
      std::size_t entry = step >> shift;
      std::uint32_t start = block;
      if (is_list) {
        unsigned vacant = 0;  // a bit for each entry
        for (unsigned i = 0; i < kListed; ++i) {
          vacant |= unsigned{entries()[i].load(std::memory_order_relaxed) == 0} << i;
        }
        if (vacant == 0 || block > kIds) return false;
        entry = static_cast<std::size_t>(std::countr_zero(vacant));
        start |= static_cast<std::uint32_t>(step) << kIdBits;
      } else if (entries()[entry].load(std::memory_order_relaxed) != 0) {
        return false;
      }
      entries()[entry].store(start, std::memory_order_release);
      return true;
    }
    void remove(std::size_t step) {
      std::size_t entry = step >> shift;
      if (is_list) {
        unsigned there = 0;  // a bit for each entry that matches
        for (unsigned i = 0; i < kListed; ++i) {
          const std::uint32_t start = entries()[i].load(std::memory_order_relaxed);
          there |= (unsigned{start >> kIdBits == step} & unsigned{start != 0}) << i;
        }
        entry = static_cast<std::size_t>(std::countr_zero(there));
      }
      entries()[entry].store(0, std::memory_order_release);
    }
  };

  std::uint64_t now() const { return word_.load(std::memory_order_relaxed); }
  static bool is_two(std::uint64_t word) { return (word & kTwo) != 0; }
  static Table* table_of(std::uint64_t word) {
    return is_two(word) ? nullptr : reinterpret_cast<Table*>(word);
  }

  template <class Visit>
  void each_unordered(Visit visit) const {
    const std::uint64_t word = now();
    if (is_two(word)) {
      const Two two(word);
      for (std::uint32_t start : {two.first, two.second}) {
        if (Two::is_start(start)) visit(start & Two::kIds);
      }
      return;
    }
    const Table* table = table_of(word);
    if (table == nullptr) return;
    for (std::size_t i = 0; i < table->count; ++i) {
      const std::uint32_t entry = table->entries()[i].load(std::memory_order_relaxed);
      if (entry != 0) visit(table->id_of(entry));
    }
  }

  // Turns the word's starts into a list, or into slots if a block ID is too large for a list.
  template <class StepOfBlock>
  Table* grow_to_list(std::size_t new_step, std::uint32_t new_block, StepOfBlock step_of_block) {
    if (new_block > Table::kIds) return grow_to_slots(new_step, step_of_block);
    return fill(Table::make(Table::kListed, true, 0, nullptr), step_of_block);
  }
  // Makes the fewest slots in which no two starts, including the new one, share a slot.
  template <class StepOfBlock>
  Table* grow_to_slots(std::size_t new_step, StepOfBlock step_of_block) {
    Table* table = table_of(now());
    unsigned shift = table != nullptr && !table->is_list ? table->shift : kLongestShift;
    for (bool fits = false; !fits;) {
      --shift;
      std::bitset<kSteps> taken;
      taken.set(new_step >> shift);
      fits = true;
      each_unordered([&](std::uint32_t block) {
        const std::size_t slot = step_of_block(block) >> shift;
        fits = fits && !taken.test(slot);
        taken.set(slot);
      });
    }
    return fill(Table::make(kSteps >> shift, false, shift, table), step_of_block);
  }
  template <class StepOfBlock>
  Table* fill(Table* table, StepOfBlock step_of_block) {
    each_unordered([&](std::uint32_t block) { table->add(step_of_block(block), block); });
    word_.store(reinterpret_cast<std::uint64_t>(table), std::memory_order_release);
    return table;
  }

  // More starts than fit in a list need at least twice as many slots as the list has entries.
  static constexpr unsigned kLongestShift =
      std::countr_zero(kSteps) - std::countr_zero(std::size_t{Table::kListed});

  std::atomic<std::uint64_t> word_{0};
};

}  // namespace uvm
