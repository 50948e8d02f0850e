// When thread caches hold large blocks of a stream, and when they return them
// (docs/rationale/large-blocks-in-threads.md).
#pragma once

#include "allocator/cache/thread_caches.hpp"
#include "allocator/engine/block_returner.hpp"
#include "allocator/engine/request.hpp"

namespace uvm {

class LargeBlockCaching {
 public:
  LargeBlockCaching(HeapState& state, ThreadCaches& caches, BlockReturner& returner)
      : state_(state), caches_(caches), returner_(returner) {}

  // A large request was served from its pool. True: it is time to trim().
  [[gnu::always_inline]] static bool hit(Pool& pool) {
    return ++pool.large_hits % policy::kRequestsPerTrim == 0;
  }
  // The thread returns the blocks of pages that it caches for the stream, medium ones if they are
  // many. If enough large requests were served, all threads cache large blocks from now on.
  void trim(ThreadCache* cache, const Request& request) noexcept;
  // Cached large blocks were in the way: all threads return them and cache none for a while.
  void stop(const Request& request);

 private:
  HeapState& state_;
  ThreadCaches& caches_;
  BlockReturner& returner_;
};

}  // namespace uvm
