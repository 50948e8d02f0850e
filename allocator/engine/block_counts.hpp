// Counts blocks that do not pass through a thread's cache. A thread counts in its own cache.
// Without memory for the cache, or for the stream in it, it counts in tallies that all threads
// share.
#pragma once

#include "allocator/cache/thread_caches.hpp"
#include "allocator/engine/heap_state.hpp"
#include "allocator/engine/request.hpp"

namespace uvm {

class BlockCounts {
 public:
  BlockCounts(const HeapState& state, ThreadCaches& caches) : state_(state), caches_(caches) {}

  void allocated(const Request& request, Block& block, bool from_cache) noexcept;
  // Before blocks of the pool are counted.
  void make_room(PoolIndex pool) { caches_.make_room(first_of(pool)); }
  bool has_room(PoolIndex pool) const UVM_NOT_ANALYSED { return caches_.has_room(first_of(pool)); }
  // The same for a block that another pool is charged for from now on, which did not serve it.
  void allocated(const StreamKey& key, PoolIndex pool, Block& block) noexcept;
  // `pool` was charged for the block, and has that key.
  void freed(const Block& block, const StreamKey& key, PoolIndex pool) noexcept;
  void count_allocated(Facade facade, int device, PoolIndex first, Block& block,
                       bool from_cache) noexcept;
  // By the owner inside its cache: opens the stream there if the cache does not know it. `again`:
  // makes it one of the recent streams even if it is open.
  void open(ThreadCache* cache, const StreamKey& key, PoolIndex first, bool again = false);
  // A peak may have been passed.
  void settle_peaks(Facade facade, int device) noexcept;

  // Blocks of all threads.
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
