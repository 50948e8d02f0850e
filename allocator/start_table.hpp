// Which block starts where in a page of 2 MiB, by steps of 4 KiB, of which each holds one start at
// most. Two starts lie in the record itself; more lie in a hashed table, which is doubled while it
// is small and at last has a place for every step. Numbers of blocks are never 0.
//
// at() may run beside a change of other steps; everything else is guarded by the owner's lock. A
// reader may still look at a table that has been outgrown, so tables are kept until the end: all of
// them together are smaller than the last one twice.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>

#include <uvmalloc/storage/pages.hpp>

namespace uvm {

class StartTable {
 public:
  static constexpr std::size_t kStep = 4096;
  static constexpr std::size_t kSteps = kPageBytes / kStep;

  static std::size_t step_of(const void* address) {
    return (address_of(address) & (kPageBytes - 1)) / kStep;
  }

  StartTable() = default;
  ~StartTable() {
    for (Table* table = table_of(word_.load(std::memory_order_relaxed)); table != nullptr;) {
      Table* outgrown = table->outgrown;
      ::operator delete(table);
      table = outgrown;
    }
  }
  StartTable(const StartTable&) = delete;
  StartTable& operator=(const StartTable&) = delete;

  // 0: none starts there.
  std::uint32_t at(std::size_t step) const {
    const std::uint64_t word = word_.load(std::memory_order_acquire);
    if ((word & kInline) != 0) {
      const auto key = static_cast<std::uint32_t>(step);
      const Few few(word);
      const std::uint32_t first = few.first & kFewIds;
      if (key == few.first >> kFewIdBits && first != 0) return first;
      return key == few.second >> kFewIdBits ? few.second & kFewIds : 0;
    }
    const Table* table = table_of(word);
    return table == nullptr ? 0 : table->at(step);
  }

  // 0 takes the start away.
  void set(std::size_t step, std::uint32_t block) {
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    Table* table = table_of(word);
    if (table == nullptr) {
      if (set_among_few(word, step, block)) return;
      table = grow(nullptr);
    }
    while (!table->set(step, block)) table = grow(table);
  }

  // The last start at or before a step; 0: there is none in this page.
  std::uint32_t last_until(std::size_t step) const {
    std::size_t last = 0;
    std::uint32_t found = 0;
    each_unordered([&](std::size_t at_step, std::uint32_t block) {
      if (at_step > step || (found != 0 && at_step < last)) return;
      last = at_step;
      found = block;
    });
    return found;
  }

  // By step.
  template <class Visit>
  void each(Visit visit) const {
    std::array<std::uint32_t, kSteps> blocks{};
    bool any = false;
    each_unordered([&](std::size_t step, std::uint32_t block) {
      blocks[step] = block;
      any = true;
    });
    if (!any) return;
    for (std::uint32_t block : blocks) {
      if (block != 0) visit(block);
    }
  }

  // Nothing is looked up at this time.
  void clear() {
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    if (Table* table = table_of(word)) {
      table->clear();
    } else {
      word_.store(0, std::memory_order_relaxed);
    }
  }

  std::size_t bytes() const {
    std::size_t bytes = 0;
    for (const Table* table = table_of(word_.load(std::memory_order_relaxed)); table != nullptr;
         table = table->outgrown) {
      bytes += table->bytes();
    }
    return bytes;
  }

 private:
  // The word is 0, or the address of a table, or, with the lowest bit set, two starts of 31 bits
  // each: 9 of the step, 22 of the block's number. Where a start is missing its number is 0.
  static constexpr std::uint64_t kInline = 1;
  static constexpr unsigned kFewIdBits = 22;
  static constexpr std::uint32_t kFewIds = (1u << kFewIdBits) - 1;
  struct Few {
    explicit Few(std::uint64_t word)
        : first(static_cast<std::uint32_t>(word) >> 1),
          second(static_cast<std::uint32_t>(word >> 33)) {}
    std::uint64_t word() const {
      return kInline | std::uint64_t{first} << 1 | std::uint64_t{second} << 33;
    }
    std::uint32_t first;
    std::uint32_t second;
  };

  // Entries are hashed by step, in a row from there on, and are a step and a number; or, in the
  // largest table, a number at its step's place. An entry that was taken away leaves a mark, so
  // that what comes after it is found; its place may be used again.
  struct Table {
    static constexpr unsigned kIdBits = 23;
    static constexpr std::uint32_t kIds = (1u << kIdBits) - 1;
    static constexpr std::uint32_t kGone = 1u << kIdBits;  // an entry that was taken away
    static constexpr std::uint32_t kLeast = 8;
    static constexpr std::uint32_t kMostHashed = 128;

    Table* outgrown;
    std::uint32_t places;
    std::uint32_t used;  // of a hashed table: places that are not as new
    using Entry = std::atomic<std::uint32_t>;

    static Table* make(std::uint32_t places, Table* outgrown) {
      void* memory = ::operator new(sizeof(Table) + places * sizeof(Entry));
      auto* table = new (memory) Table{outgrown, places, 0};
      for (std::uint32_t i = 0; i < places; ++i) new (table->entries() + i) Entry(0);
      return table;
    }

    Entry* entries() { return reinterpret_cast<Entry*>(this + 1); }
    const Entry* entries() const { return reinterpret_cast<const Entry*>(this + 1); }
    bool is_hashed() const { return places <= kMostHashed; }
    std::size_t bytes() const { return sizeof(Table) + places * sizeof(Entry); }
    std::uint32_t first_place(std::size_t step) const {
      // Fibonacci hashing: blocks of one size start at steps that share their low bits.
      return (static_cast<std::uint32_t>(step) * 0x9E3779B1u) >>
             (32 - static_cast<unsigned>(std::countr_zero(places)));
    }

    std::uint32_t at(std::size_t step) const {
      if (!is_hashed()) return entries()[step].load(std::memory_order_acquire);
      // There is always a place that is as new.
      for (std::uint32_t place = first_place(step);; place = (place + 1) & (places - 1)) {
        const std::uint32_t entry = entries()[place].load(std::memory_order_acquire);
        if (entry == 0) return 0;
        if (entry >> kIdBits == step && (entry & kIds) != 0) return entry & kIds;
      }
    }

    // False: there is no room.
    bool set(std::size_t step, std::uint32_t block) {
      if (!is_hashed()) {
        entries()[step].store(block, std::memory_order_release);
        return true;
      }
      if (block > kIds) return false;
      Entry* vacant = nullptr;
      const auto value = static_cast<std::uint32_t>(step) << kIdBits | block;
      for (std::uint32_t place = first_place(step);; place = (place + 1) & (places - 1)) {
        Entry& entry = entries()[place];
        const std::uint32_t now = entry.load(std::memory_order_relaxed);
        if (now == 0) {
          if (block == 0) return true;
          if (vacant != nullptr) break;
          if ((used + 1) * 4 > places * 3) return false;
          ++used;
          vacant = &entry;
          break;
        }
        if ((now & kIds) == 0) {
          if (vacant == nullptr) vacant = &entry;
        } else if (now >> kIdBits == step) {
          entry.store(block == 0 ? kGone : value, std::memory_order_release);
          return true;
        }
      }
      vacant->store(value, std::memory_order_release);
      return true;
    }

    void clear() {
      for (std::uint32_t i = 0; i < places; ++i) entries()[i].store(0, std::memory_order_relaxed);
      used = 0;
    }
  };

  static Table* table_of(std::uint64_t word) {
    return (word & kInline) != 0 ? nullptr : reinterpret_cast<Table*>(word);
  }

  template <class Visit>
  void each_unordered(Visit visit) const {
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    if ((word & kInline) != 0) {
      const Few few(word);
      for (std::uint32_t start : {few.first, few.second}) {
        if ((start & kFewIds) != 0) visit(start >> kFewIdBits, start & kFewIds);
      }
      return;
    }
    const Table* table = table_of(word);
    if (table == nullptr) return;
    for (std::uint32_t place = 0; place < table->places; ++place) {
      const std::uint32_t entry = table->entries()[place].load(std::memory_order_relaxed);
      if (!table->is_hashed()) {
        if (entry != 0) visit(place, entry);
      } else if ((entry & Table::kIds) != 0) {
        visit(entry >> Table::kIdBits, entry & Table::kIds);
      }
    }
  }

  // False: there is no room.
  bool set_among_few(std::uint64_t word, std::size_t step, std::uint32_t block) {
    if (block > kFewIds) return false;
    Few few(word);
    const auto start = static_cast<std::uint32_t>(step) << kFewIdBits | block;
    auto has = [&](std::uint32_t each) {
      return (each & kFewIds) != 0 && each >> kFewIdBits == step;
    };
    if (has(few.first)) {
      few.first = block == 0 ? 0 : start;
    } else if (has(few.second)) {
      few.second = block == 0 ? 0 : start;
    } else if (block == 0) {
      return true;
    } else if ((few.first & kFewIds) == 0) {
      few.first = start;
    } else if ((few.second & kFewIds) == 0) {
      few.second = start;
    } else {
      return false;
    }
    word_.store(few.word(), std::memory_order_release);
    return true;
  }

  // A larger table than that one, with all that is known; after nullptr comes the first.
  Table* grow(Table* table) {
    const std::uint64_t word = word_.load(std::memory_order_relaxed);
    std::uint32_t places = Table::kLeast;
    if (table != nullptr)
      places = table->places < Table::kMostHashed ? table->places * 2 : std::uint32_t{kSteps};
    Table* grown = Table::make(places, table_of(word));
    each_unordered([&](std::size_t step, std::uint32_t block) { grown->set(step, block); });
    word_.store(reinterpret_cast<std::uint64_t>(grown), std::memory_order_release);
    return grown;
  }

  std::atomic<std::uint64_t> word_{0};
};

}  // namespace uvm
