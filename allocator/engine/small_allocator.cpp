#include "allocator/engine/small_allocator.hpp"

#include <algorithm>
#include <array>
#include <new>

namespace uvm {

SmallArenas::Segment SmallAllocator::take_segment(PoolIndex pool_index,
                                                  SmallArenas::Growth most) noexcept {
  const HeapGuard heap(state_);
  try {
    Pool& pool = heap->pools.at(pool_index);
    PageBlock* segment = heap->pools.take_aligned(pool, SmallArena::kSegmentBytes);
    const bool is_new_page = segment == nullptr && most >= SmallArenas::Growth::kNewPages;
    if (is_new_page) segment = grower_.add_page_for_small(heap, pool, most);
    if (segment == nullptr) return {};
    try {
      heap->pools.directory().begin_small_run(segment);
    } catch (const std::bad_alloc&) {
      heap->pools.put(segment, heap->pools.at(segment->pool));
      throw;
    }
    heap->statistics.small_segment_taken(pool, segment->size_bytes());
    return {segment->address(), is_new_page};
  } catch (const std::bad_alloc&) {
    return {};
  }
}

void SmallAllocator::return_segment(void* base) noexcept {
  const HeapGuard heap(state_);
  PageBlock* segment = heap->pools.directory().end_small_run(static_cast<char*>(base));
  Pool& pool = heap->pools.at(segment->pool);
  heap->statistics.small_segment_returned(pool, segment->size_bytes());
  heap->pools.put(segment, pool);
}

SmallAllocator::Refill SmallAllocator::refill(const Request& request, SmallArenas::Growth most) {
  std::array<void*, policy::kRefillBlocks> addresses;
  std::array<Block*, policy::kRefillBlocks> blocks;
  ThreadCache* cache = caches_.local();
  // A cache that the thread has got since its request began does not know the stream.
  StreamCache* spares = cache == nullptr ? nullptr : cache->stream(request.pools);
  const std::size_t wanted = spares == nullptr
                                 ? 1
                                 : std::clamp(policy::kRefillBytes / request.size_bytes,
                                              std::size_t{1}, policy::kRefillBlocks);
  const auto [count, took_page, thread_is_exiting] =
      arenas_.allocate(request.pool(), request.size_bytes, addresses.data(), wanted, most);
  if (count == 0) return {nullptr, took_page, thread_is_exiting};
  {
    const HeapGuard heap(state_);
    for (std::size_t i = 0; i < count; ++i) {
      Block* block =
          heap->pools.directory().add_small(static_cast<char*>(addresses[i]), request.size_bytes);
      block->real.origin = Place::device(heap->pools.directory().span_of(*block)->device);
      block->real.indirect = &block->use;
      block->use.move_to(place_of_use(request.facade, request.device));
      blocks[i] = block;
    }
  }
  if (count > 1) {
    const CacheOwnerGuard inside(*cache);
    // Backwards, so that the cache serves the lowest address first.
    for (std::size_t i = count; i-- > 1;) spares->put_spare(blocks[i]);
  }
  return {blocks[0], took_page, thread_is_exiting};
}

}  // namespace uvm
