// Of BlockPools: free blocks: taking, cutting, joining.
#include <algorithm>
#include <tuple>
#include <utility>

#include <uvmalloc/allocator/heap/block_pools.hpp>
#include <uvmalloc/allocator/heap/page_fit.hpp>

namespace uvm {

// What every request for a shared block goes through is inlined where it says so: calls between
// functions of a position-independent library, which another one could replace, are not otherwise.
[[gnu::always_inline]] inline RunBlock* BlockPools::new_block(BlockKind kind, char* address,
                                                              std::size_t size_bytes,
                                                              PoolIndex home) {
  RunBlock* block = blocks_.make(home);
  block->kind = kind;
  block->place_at(address);
  block->real.resize(size_bytes);
  block->pool = home;
  block->real.indirect = nullptr;
  block->real.references = 0;
  if (kind == BlockKind::kShared) block->shared = {0, 0};
  block->set(BlockState::kReleasing);
  return block;
}

// The same for a block of whole pages, whose entries of the page map still name their former block.
RunBlock* BlockPools::new_whole_block(char* address, std::size_t size_bytes, PoolIndex home,
                                      const OwnPages& pages) {
  OwnPages* own = own_pages_.make(pages);
  try {
    RunBlock* block = new_block(BlockKind::kWhole, address, size_bytes, home);
    block->whole = own;
    return block;
  } catch (const std::bad_alloc&) {
    own_pages_.drop(own);
    throw;
  }
}

[[gnu::always_inline]] inline void BlockPools::add_start(const RunBlock& block) {
  start_table_bytes_ +=
      pages_.find(block.address())
          ->starts.add(StartTable::step_of(block.address()), block.id, StepOfBlock{blocks_});
}

[[gnu::always_inline]] inline void BlockPools::remove_start(const RunBlock& block) {
  pages_.find(block.address())->starts.remove(StartTable::step_of(block.address()));
}

void BlockPools::unlink(RunBlock* block) {
  Pool& pool = at(block->pool);
  if (block->pool == block->home) {
    pool.own.erase(block);
  } else {
    pool.guests.erase(block);
    at(block->home).away.erase(block);
  }
  // Its pool stays known: what the caller does not need goes back there.
  block->set(BlockState::kReleasing);
}

RunBlock* BlockPools::take(Pool& pool, std::size_t size_bytes) {
  count_work(&WorkCounters::pool_searches);
  RunBlock* block = pool.own.fit(size_bytes);
  if (block != nullptr) unlink(block);
  return block;
}

RunBlock* BlockPools::take_guest(Pool& pool, std::size_t size_bytes) {
  RunBlock* block = pool.guests.fit(size_bytes);
  if (block != nullptr) unlink(block);
  return block;
}

RunBlock* BlockPools::take_away(Pool& home, std::size_t size_bytes) {
  auto found = home.away.lower_bound(size_bytes);
  if (found == home.away.end()) return nullptr;
  RunBlock* block = *found;
  unlink(block);
  return block;
}

RunBlock* BlockPools::take_at(char* address, std::size_t size_bytes) {
  Block* found = find(address);
  if (found == nullptr || found->kind != BlockKind::kShared || found->now() != BlockState::kFree ||
      !found->plain) {
    return nullptr;
  }
  if (size_bytes == 0 || (address_of(address) | size_bytes) % kGranule != 0) return nullptr;
  auto* block = static_cast<RunBlock*>(found);
  const std::size_t head = bytes_between(block->address(), address);
  if (block->pool != block->home || size_bytes > block->size_bytes() - head) return nullptr;
  const std::size_t tail = block->size_bytes() - head - size_bytes;
  auto is_block = [](std::size_t bytes) { return bytes == 0 || bytes >= kSmallestShared; };
  if (!is_block(head) || !is_block(tail)) return nullptr;
  unlink(block);
  return carve(block, head, size_bytes, kSmallestShared);
}

// Cuts a taken block in two, in no index both. Of a whole block the larger part keeps the record,
// so that fewer pages must learn of a new one.
[[gnu::always_inline]] inline std::pair<RunBlock*, RunBlock*> BlockPools::split(
    RunBlock* block, std::size_t size_bytes) {
  std::size_t rest = block->size_bytes() - size_bytes;
  char* at_cut = block->address() + size_bytes;
  RunBlock* left = block;
  RunBlock* right = block;
  if (block->kind == BlockKind::kShared) {
    right = new_block(BlockKind::kShared, at_cut, rest, block->home);
    try {
      add_start(*right);
    } catch (const std::bad_alloc&) {
      blocks_.drop(right);
      throw;
    }
    block->real.resize(size_bytes);
    right->shared = {block->id, block->shared.next};
    if (RunBlock* after = next_of(right)) after->shared.previous = right->id;
    block->shared.next = right->id;
  } else if (size_bytes <= rest) {
    left = new_whole_block(block->address(), size_bytes, block->home, *block->whole);
    block->place_at(at_cut);
    block->real.resize(rest);
    set_pages(left->address(), size_bytes, tagged(left, PageKind::kWhole));
  } else {
    right = new_whole_block(at_cut, rest, block->home, *block->whole);
    block->real.resize(size_bytes);
    set_pages(at_cut, rest, tagged(right, PageKind::kWhole));
  }
  left->pool = right->pool = block->pool;
  left->real.origin = right->real.origin = block->real.origin;
  return {left, right};
}

// What is worth a block of its own; less stays with the block that is handed out.
[[gnu::always_inline]] inline std::size_t BlockPools::least_rest(const RunBlock& block,
                                                                 std::size_t size_bytes) {
  if (block.kind == BlockKind::kWhole) return kPageBytes;
  return std::max(kSmallestShared,
                  std::min(size_bytes / policy::kRequestsPerRest, policy::kMostRestBytes));
}

// Cuts what a request needs off a block in no index. `rest` is nullptr where nothing is left.
// std::bad_alloc: `block` is what is in no index then.
[[gnu::always_inline]] inline BlockPools::Cut BlockPools::cut(RunBlock*& block,
                                                              std::size_t size_bytes) {
  if (spares_pages_ && block->kind == BlockKind::kShared && block->plain &&
      size_bytes >= kPageBytes) [[unlikely]] {
    block = without_head(block, page_conserving_offset(*block, size_bytes));
  }
  if (block->kind == BlockKind::kWhole) size_bytes = round_up(size_bytes, kPageBytes);
  const std::size_t rest_bytes = block->size_bytes() - size_bytes;
  if (rest_bytes < least_rest(*block, size_bytes)) return {block, nullptr};
  auto [taken, rest] = split(block, size_bytes);
  if (!block->plain && rest != block) {
    // What is kept by record goes with the rest.
    if (auto kept = extras_.extract(block); !kept.empty()) {
      kept.key() = rest;
      extras_.insert(std::move(kept));
      rest->plain = false;
      block->plain = true;
    }
  }
  return {taken, rest};
}

RunBlock* BlockPools::trim(RunBlock* block, std::size_t size_bytes) {
  try {
    auto [taken, rest] = cut(block, size_bytes);
    if (rest != nullptr) put(rest, at(rest->pool));
    return taken;
  } catch (const std::bad_alloc&) {
    put(block, at(block->pool));
    throw;
  }
}

RunBlock* BlockPools::trim_aligned(RunBlock* block, std::size_t alignment_bytes,
                                   std::size_t size_bytes) {
  if (block->kind == BlockKind::kWhole) return trim(block, size_bytes);
  return carve(block, aligned_head(*block, alignment_bytes), size_bytes,
               least_rest(*block, size_bytes));
}

// Puts so many bytes at the beginning of a taken shared block back; returns the rest of it.
RunBlock* BlockPools::without_head(RunBlock* block, std::size_t head_bytes) {
  if (head_bytes == 0) return block;
  auto [head, rest] = split(block, head_bytes);
  put(head, at(head->pool));
  return rest;
}

// What begins so far into a taken shared block. The bytes in front of it go back, and those behind
// it where there are as many as `least_tail_bytes`; without memory for their records, all of it.
RunBlock* BlockPools::carve(RunBlock* block, std::size_t head_bytes, std::size_t size_bytes,
                            std::size_t least_tail_bytes) {
  try {
    block = without_head(block, head_bytes);
    if (block->size_bytes() - size_bytes < least_tail_bytes) return block;
    auto [taken, tail] = split(block, size_bytes);
    put(tail, at(tail->pool));
    return taken;
  } catch (const std::bad_alloc&) {
    put(block, at(block->pool));
    throw;
  }
}

// The free block of the pool that holds so many bytes at a multiple of `alignment_bytes`, with what
// is behind them enough for a block.
RunBlock* BlockPools::fit_aligned(const Pool& pool, std::size_t alignment_bytes,
                                  std::size_t size_bytes) const {
  // One of so many bytes holds them wherever it starts.
  const std::size_t sure = size_bytes + 2 * alignment_bytes;
  RunBlock* block = pool.own.fit(size_bytes);
  for (int tries = 0; block != nullptr && block->size_bytes() < sure; ++tries) {
    char* begin = block->address() + aligned_head(*block, alignment_bytes);
    std::size_t spare = bytes_between(begin + size_bytes, block->end());
    bool fits = begin + size_bytes <= block->end() && (spare == 0 || spare >= kSmallestShared);
    if (fits) break;
    block = tries < policy::kTriesForAligned ? pool.own.after(block) : pool.own.fit(sure);
  }
  return block;
}

RunBlock* BlockPools::take_aligned(Pool& pool, std::size_t size_bytes) {
  RunBlock* block = fit_aligned(pool, size_bytes, size_bytes);
  if (block == nullptr) return nullptr;
  unlink(block);
  return carve(block, aligned_head(*block, size_bytes), size_bytes, kSmallestShared);
}

RunBlock* BlockPools::take_trimmed(Pool& pool, std::size_t size_bytes) {
  count_work(&WorkCounters::pool_searches);
  RunBlock* block = pool.own.fit(size_bytes);
  if (block == nullptr) return nullptr;
  pool.own.erase(block);
  block->set(BlockState::kReleasing);
  try {
    auto [taken, rest] = cut(block, size_bytes);
    if (rest != nullptr) {
      // What was free as one could be joined with none, so neither can a part.
      rest->set(BlockState::kFree);
      pool.own.insert(rest);
    }
    return taken;
  } catch (const std::bad_alloc&) {
    put(block, pool);
    throw;
  }
}

RunBlock* BlockPools::add_pages(Span* span, char* base, std::size_t size_bytes, Pool& home,
                                const SegmentPlacement& placement) {
  home.own.prepare();
  prepare_pages(base, size_bytes);
  if (home.pool_class == PoolClass::kWhole) {
    RunBlock* block = new_whole_block(base, size_bytes, home.index, {span, placement});
    block->real.origin = Place::device(span->device);
    set_pages(base, size_bytes, tagged(block, PageKind::kWhole));
    home.run_bytes += size_bytes;
    return block;
  }
  RunBlock* block = new_block(BlockKind::kShared, base, size_bytes, home.index);
  block->real.origin = Place::device(span->device);
  try {
    pages_.each(base, size_bytes, [&](PageEntry& entry) {
      SharedPage* page = shared_pages_.make({home.index, 0, span, placement});
      entry.starts.clear();
      entry.page.store(tagged(page, PageKind::kShared), std::memory_order_release);
    });
    add_start(*block);
  } catch (const std::bad_alloc&) {
    // The pages behind this run are another run's.
    for (char* page = base; page < base + size_bytes && shared_page(page) != nullptr;
         page += kPageBytes) {
      shared_pages_.drop(shared_page(page));
      set_pages(page, kPageBytes, nullptr);
    }
    blocks_.drop(block);
    throw;
  }
  home.run_bytes += size_bytes;
  // The chains of the runs beside it become one with it.
  auto joins = [&](const SharedPage* page) {
    return page != nullptr && page->home == home.index && page->span == span &&
           page->placement == placement;
  };
  if (const SharedPage* before = shared_page(base - 1); joins(before)) {
    RunBlock* last = run_with(base - 1);
    if (last != nullptr && last->end() == base) {
      block->shared.previous = last->id;
      last->shared.next = block->id;
    }
  }
  if (const SharedPage* after = shared_page(base + size_bytes); joins(after)) {
    RunBlock* first = run_at(base + size_bytes);
    if (first != nullptr) {
      block->shared.next = first->id;
      first->shared.previous = block->id;
    }
  }
  return block;
}

RunBlock* BlockPools::neighbour_before(const RunBlock* block) const {
  if (block->kind == BlockKind::kShared) return previous_of(block);
  Page* page = page_at(block->address() - 1);
  return page != nullptr && kind_of(page) == PageKind::kWhole ? record_of<RunBlock>(page) : nullptr;
}

RunBlock* BlockPools::neighbour_after(const RunBlock* block) const {
  if (block->kind == BlockKind::kShared) return next_of(block);
  Page* page = page_at(block->end());
  return page != nullptr && kind_of(page) == PageKind::kWhole ? record_of<RunBlock>(page) : nullptr;
}

// Two neighbours of shared pages, in no index both: the left one's record is kept.
[[gnu::always_inline]] inline void BlockPools::absorb(RunBlock* left, RunBlock* right) {
  remove_start(*right);
  left->real.granules += right->real.granules;
  left->shared.next = right->shared.next;
  if (RunBlock* after = next_of(left)) after->shared.previous = left->id;
  blocks_.drop(right);
}

// Two neighbours of whole pages, in no index both: the larger one's record is kept.
RunBlock* BlockPools::join_whole(RunBlock* left, RunBlock* right) {
  char* address = left->address();
  RunBlock* kept = left->size_bytes() >= right->size_bytes() ? left : right;
  RunBlock* gone = kept == left ? right : left;
  set_pages(gone->address(), gone->size_bytes(), tagged(kept, PageKind::kWhole));
  kept->place_at(address);
  kept->real.granules += gone->real.granules;
  own_pages_.drop(gone->whole);
  blocks_.drop(gone);
  return kept;
}

void BlockPools::put(RunBlock* block, Pool& pool) noexcept {
  block->pool = pool.index;
  if (!block->plain) {
    const BlockExtras* kept = extras(block);
    block->plain = kept == nullptr || kept->fences.empty();
    if (block->plain && kept != nullptr) drop_extras(block);
  }
  block->set(BlockState::kFree);
  if (block->kind == BlockKind::kShared) {
    if (RunBlock* before = previous_of(block); can_join(before, block)) {
      pool.own.erase(before);
      absorb(before, block);
      block = before;
    }
    if (RunBlock* after = next_of(block); can_join(block, after)) {
      pool.own.erase(after);
      absorb(block, after);
    }
  } else {
    if (RunBlock* before = neighbour_before(block); can_join(before, block)) {
      unlink(before);
      block = join_whole(before, block);
      block->set(BlockState::kFree);
    }
    if (RunBlock* after = neighbour_after(block); can_join(block, after)) {
      unlink(after);
      block = join_whole(block, after);
      block->set(BlockState::kFree);
    }
  }
  link(block, pool);
}

// Into an index: a free block that can be joined with none.
[[gnu::always_inline]] inline void BlockPools::link(RunBlock* block, Pool& pool) {
  if (block->pool == block->home) {
    pool.own.insert(block);
  } else {
    pool.guests.insert(block);
    try {
      at(block->home).away.insert(block);
    } catch (const std::bad_alloc&) {
      // Its home does not find it where it is until it was used again.
    }
  }
}

// Takes whole pages out of a block that is in no index: at least `least_bytes`, at most
// `most_bytes` of them; base is nullptr where it holds too few. The rest, or all of it then, goes
// back.
BlockPools::Pages BlockPools::cut_pages(RunBlock* block, std::size_t least_bytes,
                                        std::size_t most_bytes) {
  Pool& pool = at(block->pool);
  char* begin = page_after(block->address());
  char* end = page_of(block->end());
  // A tail too small to be a block keeps its page.
  if (std::size_t tail = bytes_between(end, block->end()); tail != 0 && tail < kSmallestShared) {
    end -= kPageBytes;
  }
  if (begin >= end || bytes_between(begin, end) < least_bytes) {
    put(block, pool);
    return {};
  }
  end = begin + std::min(bytes_between(begin, end), most_bytes);
  RunBlock* head = nullptr;
  RunBlock* tail = nullptr;
  try {
    if (block->address() < begin) {
      std::tie(head, block) = split(block, bytes_between(block->address(), begin));
    }
    if (end < block->end()) std::tie(block, tail) = split(block, bytes_between(begin, end));
  } catch (const std::bad_alloc&) {
    put(block, pool);
    if (head != nullptr) put(head, pool);
    throw;
  }
  Pages pages = drop_pages(block);
  for (RunBlock* rest : {head, tail}) {
    if (rest != nullptr) put(rest, pool);
  }
  return pages;
}

}  // namespace uvm
