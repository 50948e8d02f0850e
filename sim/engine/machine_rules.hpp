// The rules of a machine's driver that differ between machines. The defaults are the ideal machine:
// a fault brings the touched pages alone, nothing is detected, and the host's memory has no end.
// Values; a profile sets them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace uvmsim {

// How faults of devices are serviced (uvm_perf_prefetch.c and uvm_gpu_replayable_faults.c of the
// modelled driver).
struct FaultRules {
  std::size_t granularity_pages =
      1;  // a faulted page brings this many aligned pages with it: 16 for 64 KiB
  // The largest subtree of a block of which more than this percentage is resident or faulted
  // becomes resident. 0: none.
  unsigned density_percent = 0;
  bool first_touch_fills_block = false;  // by the preferred location
  std::size_t faults_at_once = 0;  // that a kernel has pending in one block; 0: all of its pages
  std::size_t batch_faults = 256;  // that the driver services together
};

// When pages that two processors keep taking from each other are throttled, then pinned
// (uvm_perf_thrashing.c).
struct ThrashingRules {
  bool detects = false;
  unsigned threshold = 3;           // migrations, each within a lapse of the one before
  std::uint64_t lapse_ns = 500000;  // also how long a throttled processor sleeps
  unsigned throttles = 10;          // before the page is pinned
  unsigned pin_lapses = 300;
  unsigned epoch_lapses =
      2000;                  // after so long without a migration a block's record is dropped ...
  unsigned most_resets = 4;  // ... this often
};

struct MemoryRules {
  bool shares_host =
      false;  // devices have no memory of their own: nothing migrates, nothing is evicted
  // Devices use ordinary memory where it is, through the host's page tables, and what was evicted
  // too.
  bool uses_host_pages = false;
  // Ordinary memory takes single pages of a device, not whole chunks.
  bool ordinary_by_page = false;
  // So many accesses of 128 bytes to a 2 MiB block from afar bring it to the device. 0: never.
  std::uint64_t access_counter_threshold = 0;
  std::size_t host_bytes = std::numeric_limits<std::size_t>::max();
};

struct MachineRules {
  FaultRules faults;
  ThrashingRules thrashing;
  MemoryRules memory;
};

}  // namespace uvmsim
