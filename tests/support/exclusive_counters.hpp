// What only mutual exclusion keeps whole: two counters, written one after the other. Whoever sees
// them differ is not alone.
#pragma once

#include <atomic>
#include <cstdint>

namespace uvm::testing {

struct ExclusiveCounters {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  std::uint64_t strangers = 0;

  // Inside the lock under test.
  void count() {
    if (first != second) ++strangers;
    ++first;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    ++second;
  }
};

}  // namespace uvm::testing
