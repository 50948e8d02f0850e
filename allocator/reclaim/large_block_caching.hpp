// When thread caches hold large blocks of a stream, and when they return them
// (docs/rationale/large-blocks-in-threads.md). Thread-safe; takes the state lock itself.
#pragma once

#include "allocator/cache/thread_caches.hpp"
#include "allocator/state/block_returner.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

class LargeBlockCaching {
 public:
  LargeBlockCaching(HeapState& state, ThreadCaches& caches, BlockReturner& returner)
      : state_(state), caches_(caches), returner_(returner) {}

  // Counts a large request that its pool has served. True: it is time to trim().
  [[gnu::always_inline]] static bool hit(Pool& pool) {
    return ++pool.large_hits % policy::kRequestsPerTrim == 0;
  }
  // The thread returns the page blocks that it caches for the stream, medium ones only if they are
  // many. After enough large requests all threads cache large blocks.
  void trim(ThreadCache* cache, const Request& request) noexcept;
  // Cached large blocks have kept memory from a request: all threads return them, and cache none
  // for a while.
  void stop(const Request& request);

 private:
  HeapState& state_;
  ThreadCaches& caches_;
  BlockReturner& returner_;
};

}  // namespace uvm
