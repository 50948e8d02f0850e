// Counts blocks that do not pass through a thread's cache. A thread counts in its own cache; where
// there was no memory for that, or for the stream in it, in what all threads share.
#pragma once

#include <uvmalloc/allocator/cache/thread_caches.hpp>
#include <uvmalloc/allocator/engine/heap_state.hpp>
#include <uvmalloc/allocator/engine/request.hpp>

namespace uvm {

class BlockCounts {
 public:
  BlockCounts(const HeapState& state, ThreadCaches& caches) : state_(state), caches_(caches) {}

  void allocated(const Request& request, Block& block, bool from_cache) noexcept;
  // `key` is that of the pool that served the block.
  void freed(const Block& block, const StreamKey& key) noexcept;
  // By the owner inside its cache: what it counts of a stream may be the first that it has to do
  // with the stream. `again`: requests of the stream are to be found as recent.
  void open(ThreadCache* cache, const StreamKey& key, PoolIndex first, bool again = false);
  // A peak may have been passed.
  void settle_peaks(Facade facade, int device) noexcept;

  // Blocks of all threads.
  struct Sum {
    std::int64_t live_bytes = 0;
    std::int64_t freed_bytes = 0;  // since the start
  };
  Sum sum(std::size_t places);

 private:
  const HeapState& state_;
  ThreadCaches& caches_;
};

}  // namespace uvm
