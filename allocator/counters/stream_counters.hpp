// Counts the blocks that one thread has allocated from one stream's pools and freed into them.
// Owned by the thread whose cache contains them; other threads read them under the cache's lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace uvm {

struct StreamCounters {
  std::int64_t live_bytes = 0;  // negative if this thread freed more than it allocated
  std::int64_t peak_bytes = 0;
  std::uint64_t blocks = 0;  // number of blocks allocated since the start
  std::uint64_t bytes = 0;

  void allocated(std::size_t size_bytes) {
    live_bytes += static_cast<std::int64_t>(size_bytes);
    peak_bytes = std::max(peak_bytes, live_bytes);
    bytes += size_bytes;
    ++blocks;
  }
  void freed(std::size_t size_bytes) { live_bytes -= static_cast<std::int64_t>(size_bytes); }
  // Adds the counts of another thread, as if both threads had their peaks at the same time.
  void absorb(const StreamCounters& other) {
    live_bytes += other.live_bytes;
    peak_bytes += other.peak_bytes;
    blocks += other.blocks;
    bytes += other.bytes;
  }
  // Adds the counts of a later period, which starts when the period of these counts ends.
  void append(const StreamCounters& later) {
    peak_bytes = std::max(peak_bytes, live_bytes + later.peak_bytes);
    live_bytes += later.live_bytes;
    blocks += later.blocks;
    bytes += later.bytes;
  }
};

}  // namespace uvm
