// Two counters, written one after the other. Only mutual exclusion keeps the counters equal: a
// thread that sees a difference is not alone.
#pragma once

#include <atomic>
#include <cstdint>

namespace uvm::testing {

struct ExclusiveCounters {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  std::uint64_t strangers = 0;

  // The caller holds the lock under test.
  void count() {
    if (first != second) ++strangers;
    ++first;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    ++second;
  }
};

}  // namespace uvm::testing
