#include "allocator/engine/block_finder.hpp"

#include "allocator/state/limits.hpp"

namespace uvm {

// Takes a block that is displaced to the stream with these pools. The limit is checked first,
// because the block's pages count for the request's pool from now on.
PageBlock* BlockFinder::take_displaced_here(const LockedHeap& heap, const Request& request,
                                            StreamIndex pools) {
  if (request.requested_bytes < kPageGranularBytes ||
      !limits::check(heap, heap->pools.at(request.pool()).key, 0, request.pages_bytes()).ok()) {
    return nullptr;
  }
  return heap->pools.take_displaced_here(heap->page_granular_pool(pools), request.size_bytes);
}

BlockFinder::Taken BlockFinder::take_displaced(const LockedHeap& heap, const Request& request) {
  PageBlock* block = take_displaced_here(heap, request, request.pools);
  if (block != nullptr) {
    block = heap->pools.trim(block, request.size_bytes);
    // Only the owning pool has to wait for the fences, because this stream runs its work in order
    // anyway.
    fenced_.drop_fences(heap, block);
  }
  const bool may_be_away = !heap->pools.at(request.pool()).displaced_away.empty();
  return {block, may_be_away ? Searched::kPool : Searched::kAll};
}

Found BlockFinder::find(const Request& request, Searched searched) {
  if (searched == Searched::kAll) return {};
  {
    const HeapGuard heap(state_);
    Pool& pool = heap->pools.at(request.pool());
    if (searched == Searched::kNothing) {
      PageBlock* block = heap->pools.take(pool, request.size_bytes);
      if (block != nullptr) return {heap->pools.trim(block, request.size_bytes), true};
      block = take_displaced(heap, request).block;
      if (block != nullptr) return {block, true};
    }
    if (pool.displaced_away.empty() || state_.is_capturing()) return {};
  }
  return displaced_.recall(request);
}

// Turns pages that were taken out of one pool into a block of another pool. The block is in no
// index. After std::bad_alloc the pages are free in their span.
PageBlock* BlockFinder::transfer(const LockedHeap& heap, const Pool& lender, const PageRun& pages,
                                 Pool& pool) {
  heap->statistics.pages_removed(lender, pages.base, pages.size_bytes);
  PageBlock* block = nullptr;
  try {
    heap->statistics.prepare(pool);
    block = heap->pools.add_pages(pages, pool);
  } catch (const std::bad_alloc&) {
    heap->spans.give_back(pages.span, pages.base, pages.size_bytes);
    throw;
  }
  heap->statistics.pages_added(pool, pages.base, pages.size_bytes);
  return block;
}

PageBlock* BlockFinder::borrow(const Request& request) {
  if (request.facade == Facade::kDevice) return nullptr;
  const PoolClass other =
      request.pool_class == PoolClass::kPacked ? PoolClass::kPageGranular : PoolClass::kPacked;
  const HeapGuard heap(state_);
  Pool& lender = heap->pools.at(pool_of(request.pools, other));
  const PageRun pages = heap->pools.take_pages(lender, request.pages_bytes());
  if (pages.base == nullptr) return nullptr;
  return transfer(heap, lender, pages, heap->pools.at(request.pool()));
}

// `take(heap, pool)` returns a block or nullptr. A private pool neither lends nor borrows, because
// it keeps its memory until it is released.
template <class Take>
PageBlock* BlockFinder::take_of_other_stream(const Request& request, Take take) {
  if (request.facade != Facade::kDevice || state_.is_capturing()) return nullptr;
  PageBlock* block = nullptr;
  {
    const HeapGuard heap(state_);
    if (heap->pools.at(request.pools).key.private_pool != 0) return nullptr;
    for (const auto& pool : heap->pools.all()) {
      if (!heap->may_release(*pool) || pool->key.facade != request.facade ||
          pool->key.device != request.device || pool->pool_class != request.pool_class) {
        continue;
      }
      block = take(heap, *pool);
      if (block != nullptr) break;
    }
  }
  if (block == nullptr || machine_.stream_work.wait_for_device(request.device)) return block;
  const HeapGuard heap(state_);
  heap->pools.put(block, heap->pools.at(block->pool));
  return nullptr;
}

Found BlockFinder::steal(const Request& request) {
  PageBlock* block = take_of_other_stream(request, [&](const LockedHeap& heap, Pool& pool) {
    PageBlock* taken = heap->pools.take(pool, request.size_bytes);
    return taken != nullptr ? taken : take_displaced_here(heap, request, stream_of(pool.index));
  });
  if (block == nullptr) return {};
  const HeapGuard heap(state_);
  fenced_.drop_fences(heap, block);
  return {heap->pools.trim(block, request.size_bytes), true};
}

bool BlockFinder::steal_page(const Request& request) {
  PageBlock* block = take_of_other_stream(request, [&](const LockedHeap& heap, Pool& pool) {
    return stream_of(pool.index) == request.pools ? nullptr : heap->pools.take_with_page(pool);
  });
  if (block == nullptr) return false;
  const HeapGuard heap(state_);
  const Pool& lender = heap->pools.at(block->pool);
  Pool& pool = heap->pools.at(request.pool());
  heap->pools.put(transfer(heap, lender, heap->pools.cut_page(block), pool), pool);
  return true;
}

}  // namespace uvm
