// How many chunks of a device a plan keeps free. A prefetched page takes the chunk of the page that
// is needed last. In a step that uses its pages in a cyclic order, that is the page of the newest
// kernel. Without a free chunk, each prefetch waits for an eviction that has just begun, and the
// two directions of the link alternate. With free chunks both directions work at the same time.
//
// No chunks are kept free for a step that fits, for a step whose pages are evicted without copies,
// or on a small device, of whose memory a few chunks are a large part. Counts of pages are totals.
// Not thread-safe, like LivePlan. Calls no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {

class SpareChunks {
 public:
  // Call this after a kernel was added. Returns whether count() has changed.
  bool kernel_added(std::uint64_t step_kernels, std::uint64_t moved_by_lru,
                    std::uint64_t copied_away, std::size_t chunks) {
    if (step_kernels != 0 && kernels_ != 0 && ++kernels_ <= step_kernels) return false;
    const bool is_whole_step = step_kernels != 0 && kernels_ != 0;
    kernels_ = step_kernels == 0 ? 0 : 1;
    // `lru` moves nothing for a step that fits.
    const bool fits = std::exchange(moved_by_lru_, moved_by_lru) == moved_by_lru;
    const bool copies = std::exchange(copied_away_, copied_away) != copied_away;
    const bool has_room = chunks >= policy::kSpareChunks * policy::kLeastChunksPerSpare;
    const bool spares = is_whole_step && !fits && copies && has_room && !is_shared_;
    const std::size_t count = spares ? policy::kSpareChunks : 0;
    return std::exchange(count_, count) != count;
  }
  std::size_t count() const { return count_; }
  // Call this after pages were lost to another program. Then it is unknown which chunks are free,
  // so from now on each prefetch waits for an eviction.
  void note_lost_pages() {
    is_shared_ = true;
    count_ = 0;
  }
  bool is_shared() const { return is_shared_; }

 private:
  std::size_t count_ = 0;
  bool is_shared_ = false;
  std::uint64_t kernels_ = 0;  // kernels of the current step
  std::uint64_t moved_by_lru_ = 0;
  std::uint64_t copied_away_ = 0;
};

}  // namespace uvm::live
