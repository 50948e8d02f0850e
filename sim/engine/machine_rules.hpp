// The rules of the driver that differ between machines. The defaults are the rules of the ideal
// machine: a fault migrates only the touched pages, thrashing is not detected, and the host's
// memory is unlimited. Plain values; a profile sets them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace uvmsim {

// Service of device faults (nvidia-uvm: uvm_perf_prefetch.c, uvm_gpu_replayable_faults.c).
struct FaultRules {
  // Pages in the aligned group that migrates with a faulted page: 16 for 64 KiB.
  std::size_t granularity_pages = 1;
  // Around a fault, the largest subtree of the block with more than this percentage of its pages
  // resident or faulted becomes resident. 0: none.
  unsigned density_percent = 0;
  bool first_touch_fills_block = false;  // only at the preferred location
  std::size_t faults_at_once = 0;  // most pending faults of a kernel in one block; 0: no limit
  std::size_t batch_faults = 256;  // faults that are serviced together
};

// If pages migrate back and forth between processors, the pages are throttled, then pinned
// (uvm_perf_thrashing.c).
struct ThrashingRules {
  bool detects = false;
  unsigned threshold = 3;           // migrations, each at most `lapse_ns` after the one before
  std::uint64_t lapse_ns = 500000;  // also the sleep of a throttled processor
  unsigned throttles = 10;          // the most throttles before the page is pinned
  unsigned pin_lapses = 300;
  // After this time without a migration, a block's record is dropped, at most `most_resets` times.
  unsigned epoch_lapses = 2000;
  unsigned most_resets = 4;
};

struct MemoryRules {
  bool shares_host = false;  // devices have no own memory: no page migrates or is evicted
  // Devices use ordinary memory, and evicted pages, in place through the host's page tables.
  bool uses_host_pages = false;
  // Ordinary memory occupies single pages of a device instead of whole chunks.
  bool ordinary_by_page = false;
  // After this many remote accesses of 128 bytes to a 2 MiB block, the block migrates to the
  // device. 0: never.
  std::uint64_t access_counter_threshold = 0;
  std::size_t host_bytes = std::numeric_limits<std::size_t>::max();
};

struct MachineRules {
  FaultRules faults;
  ThrashingRules thrashing;
  MemoryRules memory;
};

}  // namespace uvmsim
