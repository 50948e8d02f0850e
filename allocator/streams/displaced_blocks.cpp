#include "allocator/streams/displaced_blocks.hpp"

#include <algorithm>

namespace uvm {

const Fence* DisplacedBlocks::first_pending(const std::vector<Fence>& fences) const {
  const auto found = std::find_if(fences.begin(), fences.end(),
                                  [&](const Fence& fence) { return !work_.is_over(fence); });
  return found == fences.end() ? nullptr : &*found;
}

bool DisplacedBlocks::is_pending(const LockedHeap& heap, const PageBlock& block,
                                 const std::vector<Pending>& pending) const {
  const BlockSideState* side_state = heap->pools.side_states().find(&block);
  if (side_state == nullptr) return false;
  return std::any_of(pending.begin(), pending.end(), [&](const Pending& known) {
    return block.own_pages->displaced_at >= known.displaced_at &&
           std::any_of(side_state->fences.begin(), side_state->fences.end(),
                       [&](const Fence& fence) { return fence.stream == known.stream; });
  });
}

// Makes one driver call for each unfinished stream, and one more for the block that it returns.
Found DisplacedBlocks::recall(const Request& request) {
  std::vector<Pending> pending;
  for (;;) {
    PageBlock* block = nullptr;
    std::vector<Fence> fences;
    {
      const HeapGuard heap(state_);
      const auto& away = heap->pools.at(request.pool()).displaced_away;
      const auto found =
          std::find_if(away.lower_bound(request.size_bytes), away.end(),
                       [&](const PageBlock* other) { return !is_pending(heap, *other, pending); });
      if (found == away.end()) return {};
      block = *found;
      heap->pools.take_displaced(block);
      fences = fenced_.fences_of(heap, block);
    }
    const Fence* const wait_for = first_pending(fences);
    const HeapGuard heap(state_);
    if (wait_for == nullptr) {
      fenced_.drop_fences(heap, block);
      block = heap->pools.trim(block, request.size_bytes);
      ++heap->statistics.figures().recalls;
      return {block, true, block->address(), block->size_bytes()};
    }
    const Pending known{wait_for->stream, block->own_pages->displaced_at};
    heap->pools.put(block, heap->pools.at(block->pool));
    pending.push_back(known);
  }
}

bool DisplacedBlocks::hold_lead(const Request& request) {
  if (request.facade == Facade::kDevice) return false;
  shed_finished_fences_of(request.pool());
  if (request.facade != Facade::kHost) return true;
  const std::size_t most_bytes =
      std::max(policy::kHostLeadBytes, policy::kHostLeadBlocks * request.pages_bytes());
  for (;;) {
    Taken oldest;
    {
      const HeapGuard heap(state_);
      const Pool& pool = heap->pools.at(request.pool());
      const std::size_t waiting_bytes = fenced_.waiting_bytes(heap, pool.index);
      std::size_t pending_bytes = waiting_bytes;
      for (const PageBlock* block : pool.displaced_away) {
        if (!block->has_no_side_state) pending_bytes += block->size_bytes();
      }
      if (pending_bytes < most_bytes) return true;
      if (waiting_bytes <= pending_bytes / 2) oldest = take_oldest_fenced(heap, pool, 0);
    }
    bool is_over = false;
    if (oldest.block == nullptr) {
      is_over = fenced_.wait_for_oldest();
    } else {
      is_over = std::all_of(oldest.fences.begin(), oldest.fences.end(),
                            [&](const Fence& fence) { return work_.wait_for(fence); });
      put_back(oldest, is_over);
    }
    if (!is_over) return true;
  }
}

void DisplacedBlocks::shed_finished_fences() {
  std::size_t pools = 0;
  {
    const HeapGuard heap(state_);
    pools = heap->pools.all().size();
  }
  for (PoolIndex owning_pool = 0; owning_pool < pools; ++owning_pool)
    shed_finished_fences_of(owning_pool);
}

void DisplacedBlocks::shed_finished_fences_of(PoolIndex owning_pool) {
  for (Taken next;;) {
    {
      const HeapGuard heap(state_);
      next = take_oldest_fenced(heap, heap->pools.at(owning_pool), next.displaced_at);
    }
    if (next.block == nullptr) return;
    put_back(next, work_.are_over(next.fences));
  }
}

// Takes the oldest block with fences that was displaced from the pool later than `after`.
DisplacedBlocks::Taken DisplacedBlocks::take_oldest_fenced(const LockedHeap& heap,
                                                           const Pool& owning_pool,
                                                           std::uint64_t after) {
  Taken oldest;
  for (PageBlock* block : owning_pool.displaced_away) {
    const std::uint64_t at = block->own_pages->displaced_at;
    if (block->has_no_side_state || at <= after) continue;
    if (oldest.block == nullptr || at < oldest.displaced_at) oldest = {block, at, {}};
  }
  if (oldest.block == nullptr) return oldest;
  heap->pools.take_displaced(oldest.block);
  oldest.fences = fenced_.fences_of(heap, oldest.block);
  return oldest;
}

void DisplacedBlocks::put_back(const Taken& taken, bool without_fences) {
  const HeapGuard heap(state_);
  if (without_fences) fenced_.drop_fences(heap, taken.block);
  heap->pools.put(taken.block, heap->pools.at(taken.block->pool));
}

}  // namespace uvm
