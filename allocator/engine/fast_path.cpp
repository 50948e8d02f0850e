// The hot paths, in one translation unit so that the compiler can inline them.
#include <uvmalloc/allocator.hpp>
#include "allocator/engine/engine.hpp"

namespace uvm {

// Takes a block of the stream's pool. Takes the state lock once and calls no driver.
[[gnu::always_inline]] inline void* Engine::allocate_from_pool(ThreadCache* cache,
                                                               const Request& request) {
  PageBlock* block = nullptr;
  TraceTime at = 0;
  bool is_time_to_trim = false;
  BlockFinder::Taken taken;
  fenced_.drain_some();
  {
    const HeapGuard heap(state);
    Pool& pool = heap->pools.at(request.pool());
    block = heap->pools.take_trimmed(pool, request.size_bytes);
    if (block != nullptr) [[likely]] {
      mark_live(heap, request, block, block->owning_pool);
      if (request.size_bytes >= kLargeBytes) is_time_to_trim = LargeBlockCaching::hit(pool);
      at = machine.trace.now();
    } else {
      taken = finder_.take_displaced(heap, request);
    }
  }
  decay.now_and_then();
  if (block == nullptr) [[unlikely]]
    return allocate_pages(request, taken);
  void* address = block->address();
  if (at != 0) [[unlikely]]
    machine.trace.allocated(at, request.traced(address, block->size_bytes()));
  bool within = false;
  {
    const CacheOwnerGuard inside(*cache);
    within = cache->count_allocated(stream_of(block->pool), *block, true);
  }
  if (!within) counts_.settle_peaks(request.facade, request.device);
  if (is_time_to_trim) [[unlikely]]
    trim_large(cache, request);
  return address;
}

[[gnu::always_inline]] inline void* Engine::allocate(Facade facade, int device,
                                                     std::size_t size_bytes, StreamHandle stream) {
  // Private pools hold only device memory.
  const bool may_be_private = facade == Facade::kDevice && state.has_open_private_pools();
  if (ThreadCache* cache = caches.local(); cache != nullptr && !may_be_private) [[likely]] {
    ThreadCache::Outcome outcome{};
    StreamIndex pools = ThreadCache::kUnknownStream;
    const StreamHandle of = is_stream_ordered(facade) ? stream : nullptr;
    cache->lock.lock_owner();
    Block* block = cache->allocate(facade, device, of, size_bytes, &outcome, &pools);
    // Read under the lock: if no trace runs yet, a trace that begins later lists this block as
    // live.
    const bool is_traced = machine.trace.enabled();
    cache->lock.unlock_owner();
    if (block != nullptr) [[likely]] {
      void* address = block->address();
      unpoison(address, block->size_bytes());
      if (is_traced) [[unlikely]] {
        machine.trace.allocated(machine.trace.now(),
                                {facade, device, address, size_bytes, block->size_bytes(), of});
      }
      if (outcome == ThreadCache::Outcome::kDoneAtLimit) [[unlikely]]
        on_cache_limit(facade, device);
      return address;
    }
    if (pools != ThreadCache::kUnknownStream && size_bytes - 1 < kLargestRequest) {
      const Request request = Request::make(facade, device, size_bytes, of, pools);
      return size_bytes > kSmallBytes ? allocate_from_pool(cache, request)
                                      : allocate_small(request);
    }
  }
  return allocate_slow(facade, device, size_bytes, stream);
}

[[gnu::always_inline]] inline FreeResult Engine::free(void* address) noexcept {
  Block* block = nullptr;
  if (ThreadCache* cache = caches.local()) [[likely]] {
    block = cache->known_at(address);
    if (block == nullptr) block = state.block_at(address);
    // Read under the lock: a thread that stops the world may mark blocks, or begin a trace.
    cache->lock.lock_owner();
    if (block != nullptr && block->now() == BlockState::kLive && block->has_no_side_state)
        [[likely]] {
      // The time must be read before another thread can get the block.
      const TraceTime at = machine.trace.now();
      const std::size_t requested_bytes = block->requested_bytes();
      const std::size_t size_bytes = block->size_bytes();
      poison(address, size_bytes);
      const StreamKey* key = cache->put(block);
      const bool kept = key != nullptr;
      if (!kept && block->kind != BlockKind::kSmall) {
        key = cache->pass_on(*block);
        if (key != nullptr) block->set(BlockState::kReleasing);
      }
      cache->lock.unlock_owner();
      if (key != nullptr) [[likely]] {
        if (at != 0) [[unlikely]] {
          machine.trace.freed(
              at, {key->facade, key->device, address, requested_bytes, size_bytes, key->stream});
        }
        if (!kept) {
          {
            const HeapGuard heap(state);
            heap->pools.put(static_cast<PageBlock*>(block), heap->pools.at(block->pool));
          }
          decay.now_and_then();
        }
        return FreeResult::kFreed;
      }
    } else {
      cache->lock.unlock_owner();
    }
  }
  return free_slow(address, block);
}

void* CachingManagedAllocator::allocate(Facade facade, int device, std::size_t size_bytes,
                                        StreamHandle stream) {
  if (engine_->live.is_watching()) [[unlikely]]
    return engine_->allocate_watched(facade, device, size_bytes, stream);
  return engine_->allocate(facade, device, size_bytes, stream);
}

FreeResult CachingManagedAllocator::free(void* address) noexcept {
  if (engine_->live.is_watching()) [[unlikely]] {
    engine_->live.freed(address);
    // Bypasses the thread's cache, because only a block that is free in its pool can be discarded.
    return engine_->free_slow(address, nullptr);
  }
  return engine_->free(address);
}

}  // namespace uvm
