// Which block starts where in a page of 2 MiB, by steps of 4 KiB, of which each holds one start at
// most. A page of few blocks has a list of four entries; with the fifth comes a table with a place
// for every step, which stays. Numbers of blocks are never 0.
//
// at() may run beside a change of other steps; everything else is guarded by the owner's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <uvmalloc/storage/pages.hpp>

namespace uvm {

class StartTable {
 public:
  static constexpr std::size_t kStep = 4096;
  static constexpr std::size_t kSteps = kPageBytes / kStep;

  StartTable() = default;
  ~StartTable() { delete table_.load(std::memory_order_relaxed); }
  StartTable(const StartTable&) = delete;
  StartTable& operator=(const StartTable&) = delete;

  // 0: none starts there.
  std::uint32_t at(std::size_t step) const {
    if (const Table* table = table_.load(std::memory_order_acquire)) {
      return (*table)[step].load(std::memory_order_acquire);
    }
    for (const auto& entry : few_) {
      const std::uint64_t value = entry.load(std::memory_order_acquire);
      if (value >> 32 == step && static_cast<std::uint32_t>(value) != 0) {
        return static_cast<std::uint32_t>(value);
      }
    }
    return 0;
  }

  // 0 takes the start away.
  void set(std::size_t step, std::uint32_t block) {
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr) {
      if (set_among_few(step, block)) return;
      table = make_table();
    }
    auto& entry = (*table)[step];
    count_ += (block != 0) - (entry.load(std::memory_order_relaxed) != 0);
    entry.store(block, std::memory_order_release);
  }

  // The last start at or before a step; 0: there is none in this page.
  std::uint32_t last_until(std::size_t step) const {
    if (count_ == 0) return 0;
    for (std::size_t at_step = step + 1; at_step-- > 0;) {
      if (std::uint32_t block = at(at_step); block != 0) return block;
    }
    return 0;
  }

  template <class Visit>
  void each(Visit visit) const {
    if (count_ == 0) return;
    for (std::size_t step = 0; step < kSteps; ++step) {
      if (std::uint32_t block = at(step); block != 0) visit(block);
    }
  }

  void clear() {
    count_ = 0;
    for (auto& entry : few_) entry.store(0, std::memory_order_relaxed);
    if (Table* table = table_.load(std::memory_order_relaxed)) {
      for (auto& entry : *table) entry.store(0, std::memory_order_relaxed);
    }
  }

  std::size_t bytes() const {
    return table_.load(std::memory_order_relaxed) != nullptr ? sizeof(Table) : 0;
  }

 private:
  using Table = std::array<std::atomic<std::uint32_t>, kSteps>;

  // False: there is no room.
  bool set_among_few(std::size_t step, std::uint32_t block) {
    std::atomic<std::uint64_t>* vacant = nullptr;
    for (auto& entry : few_) {
      const std::uint64_t value = entry.load(std::memory_order_relaxed);
      const bool taken = static_cast<std::uint32_t>(value) != 0;
      if (taken && value >> 32 == step) {
        count_ -= block == 0;
        entry.store(block == 0 ? 0 : value >> 32 << 32 | block, std::memory_order_release);
        return true;
      }
      if (!taken) vacant = &entry;
    }
    if (block == 0) return true;
    if (vacant == nullptr) return false;
    ++count_;
    vacant->store(static_cast<std::uint64_t>(step) << 32 | block, std::memory_order_release);
    return true;
  }
  // With all that is in the list; readers that found no table yet still read that.
  Table* make_table() {
    auto table = std::make_unique<Table>();
    for (const auto& entry : few_) {
      const std::uint64_t value = entry.load(std::memory_order_relaxed);
      (*table)[value >> 32].store(static_cast<std::uint32_t>(value), std::memory_order_relaxed);
    }
    table_.store(table.get(), std::memory_order_release);
    return table.release();
  }

  std::atomic<Table*> table_{nullptr};
  std::uint32_t count_ = 0;
  std::array<std::atomic<std::uint64_t>, 4> few_{};  // step and block
};

}  // namespace uvm
