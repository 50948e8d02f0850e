// The part of BlockPools that takes, cuts and joins free blocks.
#include "allocator/heap/block_pools.hpp"

#include <algorithm>

namespace uvm {

// The functions that serve packed blocks are marked always_inline. In a position-independent
// library the compiler does not inline a function that another library could replace.

void BlockPools::unlink(PageBlock* block) {
  Pool& pool = at(block->pool);
  if (block->pool == block->owning_pool) {
    pool.own.erase(block);
  } else {
    pool.displaced_here.erase(block);
    at(block->owning_pool).displaced_away.erase(block);
  }
  // block->pool stays set, because the caller returns unneeded parts of the block to that pool.
  block->set(BlockState::kReleasing);
}

PageBlock* BlockPools::take(Pool& pool, std::size_t size_bytes) {
  count_work(&WorkCounters::pool_searches);
  PageBlock* block = pool.own.fit(size_bytes);
  if (block != nullptr) unlink(block);
  return block;
}

PageBlock* BlockPools::take_displaced_here(Pool& pool, std::size_t size_bytes) {
  PageBlock* block = pool.displaced_here.fit(size_bytes);
  if (block != nullptr) unlink(block);
  return block;
}

PageBlock* BlockPools::take_at(char* address, std::size_t size_bytes) {
  Block* found = directory().find(address);
  if (found == nullptr || found->kind != BlockKind::kPacked || found->now() != BlockState::kFree ||
      !found->has_no_side_state) {
    return nullptr;
  }
  if (size_bytes == 0 || (address_of(address) | size_bytes) % kGranule != 0) return nullptr;
  auto* block = static_cast<PageBlock*>(found);
  const std::size_t head = bytes_between(block->address(), address);
  if (block->pool != block->owning_pool || size_bytes > block->size_bytes() - head) return nullptr;
  const std::size_t tail = block->size_bytes() - head - size_bytes;
  auto is_block = [](std::size_t bytes) { return bytes == 0 || bytes >= kSmallestPacked; };
  if (!is_block(head) || !is_block(tail)) return nullptr;
  unlink(block);
  return split_middle(block, head, size_bytes, kSmallestPacked);
}

// Returns the smallest rest that becomes a block. A smaller rest stays part of the cut block.
[[gnu::always_inline]] inline std::size_t BlockPools::least_rest(const PageBlock& block,
                                                                 std::size_t size_bytes) {
  if (block.kind == BlockKind::kPageGranular) return kPageBytes;
  return std::max(kSmallestPacked,
                  std::min(size_bytes / policy::kRequestsPerRest, policy::kMostRestBytes));
}

// Splits a block that is in no index into a block for a request and a rest. The rest is nullptr if
// the request takes the whole block. After std::bad_alloc, `block` is the part that is still in no
// index.
[[gnu::always_inline]] inline BlockPools::Cut BlockPools::split_off_rest(PageBlock*& block,
                                                                         std::size_t size_bytes) {
  if (conserves_pages_ && block->kind == BlockKind::kPacked && block->has_no_side_state &&
      size_bytes >= kPageBytes) [[unlikely]] {
    block = split_off_head(block, page_conserving_offset(*block, size_bytes));
  }
  if (block->kind == BlockKind::kPageGranular) size_bytes = round_up(size_bytes, kPageBytes);
  const std::size_t rest_bytes = block->size_bytes() - size_bytes;
  if (rest_bytes < least_rest(*block, size_bytes)) return {block, nullptr};
  auto [taken, rest] = runs_.split(block, size_bytes);
  if (!block->has_no_side_state && rest != block) side_states_.transfer(block, rest);
  return {taken, rest};
}

PageBlock* BlockPools::trim(PageBlock* block, std::size_t size_bytes) {
  try {
    auto [taken, rest] = split_off_rest(block, size_bytes);
    if (rest != nullptr) put(rest, at(rest->pool));
    return taken;
  } catch (const std::bad_alloc&) {
    put(block, at(block->pool));
    throw;
  }
}

PageBlock* BlockPools::trim_aligned(PageBlock* block, std::size_t alignment_bytes,
                                    std::size_t size_bytes) {
  if (block->kind == BlockKind::kPageGranular) return trim(block, size_bytes);
  return split_middle(block, aligned_head(*block, alignment_bytes), size_bytes,
                      least_rest(*block, size_bytes));
}

// Puts the first `head_bytes` of a taken packed block back. Returns the rest.
PageBlock* BlockPools::split_off_head(PageBlock* block, std::size_t head_bytes) {
  if (head_bytes == 0) return block;
  auto [head, rest] = runs_.split(block, head_bytes);
  put(head, at(head->pool));
  return rest;
}

// Cuts a part out of a taken packed block. Puts back the bytes in front of the part, and the bytes
// behind the part if there are at least `least_tail_bytes`. On std::bad_alloc puts all bytes back.
PageBlock* BlockPools::split_middle(PageBlock* block, std::size_t head_bytes,
                                    std::size_t size_bytes, std::size_t least_tail_bytes) {
  try {
    block = split_off_head(block, head_bytes);
    if (block->size_bytes() - size_bytes < least_tail_bytes) return block;
    auto [taken, tail] = runs_.split(block, size_bytes);
    put(tail, at(tail->pool));
    return taken;
  } catch (const std::bad_alloc&) {
    put(block, at(block->pool));
    throw;
  }
}

// Returns a free block of the pool that holds `size_bytes` at a multiple of `alignment_bytes`. The
// block ends after these bytes, or has enough bytes behind them for another block.
PageBlock* BlockPools::fit_aligned(const Pool& pool, std::size_t alignment_bytes,
                                   std::size_t size_bytes) const {
  // A block of this size is large enough at any address.
  const std::size_t sure = size_bytes + 2 * alignment_bytes;
  PageBlock* block = pool.own.fit(size_bytes);
  for (int tries = 0; block != nullptr && block->size_bytes() < sure; ++tries) {
    char* begin = block->address() + aligned_head(*block, alignment_bytes);
    std::size_t spare = bytes_between(begin + size_bytes, block->end());
    bool fits = begin + size_bytes <= block->end() && (spare == 0 || spare >= kSmallestPacked);
    if (fits) break;
    block = tries < policy::kTriesForAligned ? pool.own.after(block) : pool.own.fit(sure);
  }
  return block;
}

PageBlock* BlockPools::take_aligned(Pool& pool, std::size_t size_bytes) {
  PageBlock* block = fit_aligned(pool, size_bytes, size_bytes);
  if (block == nullptr) return nullptr;
  unlink(block);
  return split_middle(block, aligned_head(*block, size_bytes), size_bytes, kSmallestPacked);
}

PageBlock* BlockPools::take_trimmed(Pool& pool, std::size_t size_bytes) {
  count_work(&WorkCounters::pool_searches);
  PageBlock* block = pool.own.fit(size_bytes);
  if (block == nullptr) return nullptr;
  pool.own.erase(block);
  block->set(BlockState::kReleasing);
  try {
    auto [taken, rest] = split_off_rest(block, size_bytes);
    if (rest != nullptr) {
      // No neighbour could be joined with the free block, so no neighbour can be joined with the
      // rest.
      rest->set(BlockState::kFree);
      pool.own.insert(rest);
    }
    return taken;
  } catch (const std::bad_alloc&) {
    put(block, pool);
    throw;
  }
}

void BlockPools::put(PageBlock* block, Pool& pool) noexcept {
  block->pool = pool.index;
  if (!block->has_no_side_state) {
    const BlockSideState* side_state = side_states_.find(block);
    block->has_no_side_state = side_state == nullptr || side_state->fences.empty();
    if (block->has_no_side_state && side_state != nullptr) side_states_.drop(block);
  }
  block->set(BlockState::kFree);
  if (block->kind == BlockKind::kPacked) {
    if (PageBlock* before = runs_.previous_packed(block); can_join(before, block)) {
      pool.own.erase(before);
      block = runs_.join_packed(before, block);
    }
    if (PageBlock* after = runs_.next_packed(block); can_join(block, after)) {
      pool.own.erase(after);
      block = runs_.join_packed(block, after);
    }
  } else {
    if (PageBlock* before = runs_.previous_granular(block); can_join(before, block)) {
      unlink(before);
      block = runs_.join_granular(before, block);
      block->set(BlockState::kFree);
    }
    if (PageBlock* after = runs_.next_granular(block); can_join(block, after)) {
      unlink(after);
      block = runs_.join_granular(block, after);
      block->set(BlockState::kFree);
    }
  }
  link(block, pool);
}

// Inserts a free block into an index. The caller has joined it with its neighbours.
[[gnu::always_inline]] inline void BlockPools::link(PageBlock* block, Pool& pool) {
  if (block->pool == block->owning_pool) {
    pool.own.insert(block);
  } else {
    pool.displaced_here.insert(block);
    try {
      at(block->owning_pool).displaced_away.insert(block);
    } catch (const std::bad_alloc&) {
      // The owning pool cannot find this block until the block has been used again.
    }
  }
}

}  // namespace uvm
