#include "allocator/reclaim/large_block_caching.hpp"

namespace uvm {

void LargeBlockCaching::trim(ThreadCache* cache, const Request& request) noexcept {
  bool may_cache_large = false;
  std::size_t used_bytes = 0;
  {
    const HeapGuard heap(state_);
    may_cache_large = heap->pools.at(request.pool()).may_cache_large();
    // The thread's own live bytes would not tell how much is in use if other threads free its
    // blocks.
    used_bytes = heap->pools.bytes_in_use(request.pools);
  }
  {
    BlockReturner::Later kept(returner_);
    const CacheOwnerGuard inside(*cache);
    if (StreamCache* of = cache->stream(request.pools))
      of->trim(used_bytes / policy::kMediumParts, &kept.blocks);
  }
  if (may_cache_large) caches_.set_may_cache_large(request.pools);
}

void LargeBlockCaching::stop(const Request& request) {
  {
    const HeapGuard heap(state_);
    for (const auto& pool : heap->pools.table().pools_of(request.pools)) pool->stop_caching_large();
  }
  BlockReturner::Later kept(returner_);
  caches_.stop_caching_large(request.pools, &kept.blocks);
}

}  // namespace uvm
