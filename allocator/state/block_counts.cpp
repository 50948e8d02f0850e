#include "allocator/state/block_counts.hpp"

namespace uvm {

void BlockCounts::allocated(const Request& request, Block& block, bool from_cache) noexcept {
  count_allocated(request.facade, request.device, request.pools, block, from_cache);
}

void BlockCounts::allocated(const StreamKey& key, PoolIndex pool, Block& block) noexcept {
  try {
    if (ThreadCache* cache = caches_.local()) {
      const CacheOwnerGuard inside(*cache);
      open(cache, key, stream_of(pool));
    }
  } catch (const std::bad_alloc&) {
    // The stream is not open in the cache, and there is no memory to open it.
  }
  count_allocated(key.facade, key.device, stream_of(pool), block, true);
}

void BlockCounts::count_allocated(Facade facade, int device, StreamIndex stream, Block& block,
                                  bool from_cache) noexcept {
  // A thread may have got a cache since its request began. Such a cache does not know the stream.
  ThreadCache* const cache = caches_.local();
  if (cache != nullptr && cache->stream(stream) != nullptr) {
    bool within = false;
    {
      const CacheOwnerGuard inside(*cache);
      within = cache->count_allocated(stream, block, from_cache);
    }
    if (!within) settle_peaks(facade, device);
    return;
  }
  auto count = [&](ThreadCounters& counts, StreamCounters& of_stream) {
    counts.allocated(size_class_of(block.size_bytes()), block.size_bytes(), block.requested_bytes(),
                     from_cache);
    of_stream.allocated(block.size_bytes());
  };
  caches_.count_elsewhere(count, state_.counter_index(facade, device), stream);
}

void BlockCounts::open(ThreadCache* cache, const StreamKey& key, StreamIndex stream, bool again) {
  if (!again && cache->stream(stream) != nullptr) return;
  cache->open(key, stream, state_.counter_index(key.facade, key.device));
}

void BlockCounts::freed(const Block& block, const StreamKey& key, PoolIndex pool) noexcept {
  if (ThreadCache* cache = caches_.local()) {
    try {
      const CacheOwnerGuard inside(*cache);
      open(cache, key, stream_of(pool));
      cache->count_freed(stream_of(pool), block);
      return;
    } catch (const std::bad_alloc&) {
      // The stream is not open in the cache, and there is no memory to open it.
    }
  }
  caches_.count_elsewhere(
      [&](ThreadCounters& counts, StreamCounters& of_stream) {
        counts.freed(size_class_of(block.size_bytes()), block.size_bytes(),
                     block.requested_bytes());
        of_stream.freed(block.size_bytes());
      },
      state_.counter_index(key.facade, key.device), stream_of(pool));
}

void BlockCounts::settle_peaks(Facade facade, int device) noexcept {
  ThreadCaches::StopTheWorld stopped(caches_);
  caches_.aggregate(state_.counter_index(facade, device));
}

BlockCounts::Sum BlockCounts::sum(std::size_t counters) {
  Sum bytes;
  ThreadCaches::StopTheWorld stopped(caches_);
  for (std::size_t counter = 0; counter < counters; ++counter) {
    const ThreadCounters sum = caches_.sum(counter);
    const std::int64_t live = sum.live(ThreadCounters::kAll).bytes;
    bytes.live_bytes += live;
    bytes.freed_bytes += sum.total(ThreadCounters::kAll).bytes - live;
  }
  return bytes;
}

}  // namespace uvm
