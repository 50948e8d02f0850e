// Counts blocks that do not pass through a thread's cache, in that cache's counters. If there is no
// memory for the cache, or for the stream in it, it counts in counters that all threads share.
// Thread-safe; called without the state lock.
#pragma once

#include "allocator/cache/thread_caches.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

class BlockCounts {
 public:
  BlockCounts(const HeapState& state, ThreadCaches& caches) : state_(state), caches_(caches) {}

  // Counts a block that was allocated for the request.
  void allocated(const Request& request, Block& block, bool from_cache) noexcept;
  // Makes room for the pool's counters, before blocks of the pool are counted. std::bad_alloc.
  void make_room(PoolIndex pool) { caches_.make_room(first_of(pool)); }
  bool has_room(PoolIndex pool) const UVM_NOT_ANALYSED { return caches_.has_room(first_of(pool)); }
  // Counts a block that is charged to another pool from now on; that pool has not served it.
  void allocated(const StreamKey& key, PoolIndex pool, Block& block) noexcept;
  // Counts a free of a block that was charged to `pool`, which has that key.
  void freed(const Block& block, const StreamKey& key, PoolIndex pool) noexcept;
  void count_allocated(Facade facade, int device, PoolIndex first, Block& block,
                       bool from_cache) noexcept;
  // Called by the cache's owner inside it: opens the stream there if the cache does not know it.
  // `again`: makes it one of the recent streams even if it is open.
  void open(ThreadCache* cache, const StreamKey& key, PoolIndex first, bool again = false);
  // Updates the peaks from the counters of all threads, because one may have been passed.
  void settle_peaks(Facade facade, int device) noexcept;

  // The blocks of all threads.
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
