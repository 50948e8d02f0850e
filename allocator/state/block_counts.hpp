// Counts blocks that bypass the thread's cache, in the counters of that cache. If there is no
// memory for the cache, or for the stream in it, counts them in counters that all threads share.
// Thread-safe; called without the state lock.
#pragma once

#include "allocator/cache/thread_caches.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

class BlockCounts {
 public:
  BlockCounts(const HeapState& state, ThreadCaches& caches) : state_(state), caches_(caches) {}

  void allocated(const Request& request, Block& block, bool from_cache) noexcept;
  // Makes room for the pool's counters, before its blocks are counted. Throws std::bad_alloc.
  void make_room(PoolIndex pool) { caches_.make_room(stream_of(pool)); }
  bool has_room(PoolIndex pool) const UVM_NOT_ANALYSED { return caches_.has_room(stream_of(pool)); }
  // Counts a block whose charge moves to `pool`, which did not serve the block. `key` is its key.
  void allocated(const StreamKey& key, PoolIndex pool, Block& block) noexcept;
  // Counts the free of a block that was charged to `pool`. `key` is the pool's key.
  void freed(const Block& block, const StreamKey& key, PoolIndex pool) noexcept;
  void count_allocated(Facade facade, int device, StreamIndex stream, Block& block,
                       bool from_cache) noexcept;
  // Opens the stream in the cache if it is not open there. Called by the thread that owns the
  // cache, within a CacheOwnerGuard. `again`: makes the stream recent even if it is open.
  void open(ThreadCache* cache, const StreamKey& key, StreamIndex stream, bool again = false);
  // Updates the peaks from the counters of all threads. Called when a count may have passed a peak.
  void settle_peaks(Facade facade, int device) noexcept;

  // Bytes in blocks, summed over all threads.
  struct Sum {
    std::int64_t live_bytes = 0;
    std::int64_t freed_bytes = 0;  // since the start
  };
  Sum sum(std::size_t counters);

 private:
  const HeapState& state_;
  ThreadCaches& caches_;
};

}  // namespace uvm
