// Counts an allocator's driver calls so far, and the memory that it holds. The stand-in counts for
// every allocator alike. Reading these counts makes no driver calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include <uvmalloc/sim/uvmsim.h>

namespace uvm::bench {

struct DriverCalls {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t advice = 0;
  std::uint64_t discards = 0;
  std::uint64_t prefetches = 0;

  static DriverCalls so_far() {
    uvmsim_counters counters{};
    uvmsim_get_counters(&counters);
    return {
        counters.managed_allocations + counters.device_allocations + counters.pinned_allocations,
        counters.managed_frees + counters.device_frees + counters.pinned_frees,
        counters.advice_calls, counters.discard_calls, counters.prefetch_calls};
  }
  DriverCalls since(const DriverCalls& before) const {
    return {allocations - before.allocations, frees - before.frees, advice - before.advice,
            discards - before.discards, prefetches - before.prefetches};
  }
};

}  // namespace uvm::bench
