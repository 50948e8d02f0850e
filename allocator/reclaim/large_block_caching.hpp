// Decides when thread caches hold large blocks of a stream, and when they return these blocks
// (docs/internals/rationale/large-blocks-in-threads.md). Thread-safe; takes the state lock itself.
#pragma once

#include "allocator/cache/thread_caches.hpp"
#include "allocator/state/block_returner.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

class LargeBlockCaching {
 public:
  LargeBlockCaching(HeapState& state, ThreadCaches& caches, BlockReturner& returner)
      : state_(state), caches_(caches), returner_(returner) {}

  // Counts a large request that its pool has served. Returns true when it is time to call trim().
  [[gnu::always_inline]] static bool hit(Pool& pool) {
    return ++pool.large_hits % policy::kRequestsPerTrim == 0;
  }
  // Gives back the page blocks that the thread caches for the stream. Gives back medium blocks only
  // if they hold many bytes. After enough large requests, lets all threads cache large blocks.
  void trim(ThreadCache* cache, const Request& request) noexcept;
  // Called when a request needed the memory of cached large blocks. All threads return their large
  // blocks, and cache no large blocks for a while.
  void stop(const Request& request);

 private:
  HeapState& state_;
  ThreadCaches& caches_;
  BlockReturner& returner_;
};

}  // namespace uvm
