#include <uvmalloc/allocator/heap/block_pools.hpp>

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include <uvmalloc/runtime/log.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  detail::forget_ranks();
  log_line(LogLevel::kError, fmt::format("broken invariant: {}", what));
  std::abort();
}

char* page_of(const char* address) {
  return reinterpret_cast<char*>(address_of(address) & ~(kPageBytes - 1));
}

char* page_after(const char* address) {
  return reinterpret_cast<char*>(round_up(address_of(address), kPageBytes));
}

// Of a block's number, in which step of its page it starts.
struct StepOfBlock {
  const RunBlockStore& blocks;
  std::size_t operator()(std::uint32_t id) const {
    return StartTable::step_of(blocks.at(id)->address());
  }
};

// From a shared block's start to a multiple of `alignment_bytes`: nothing, or enough for a block.
std::size_t aligned_head(const RunBlock& block, std::size_t alignment_bytes) {
  const std::size_t begin = address_of(block.address());
  std::size_t head_bytes = round_up(begin, alignment_bytes) - begin;
  while (head_bytes != 0 && head_bytes < BlockPools::kSmallestShared) head_bytes += alignment_bytes;
  return head_bytes;
}

std::size_t bytes_between(const char* begin, const char* end) {
  return begin < end ? static_cast<std::size_t>(end - begin) : 0;
}

}  // namespace

BlockPools::~BlockPools() = default;

PoolIndex BlockPools::pools_of(const StreamKey& key) {
  if (auto found = streams_.find(key); found != streams_.end()) {
    at(found->second).stream_is_over = false;
    return found->second;
  }
  const auto first = static_cast<PoolIndex>(pools_.size());
  std::array<std::unique_ptr<Pool>, kPoolsPerStream> made;
  for (PoolIndex place = 0; place < kPoolsPerStream; ++place) {
    made[place] = std::make_unique<Pool>(blocks_, requests_before_keeping_);
    made[place]->index = first + place;
    made[place]->key = key;
    made[place]->pool_class = static_cast<PoolClass>(place);
  }
  // Both or, without memory, none.
  const std::size_t wanted = pools_.size() + kPoolsPerStream;
  if (pools_.capacity() < wanted) pools_.reserve(2 * wanted);
  streams_.emplace(key, first);
  for (auto& pool : made) pools_.push_back(std::move(pool));
  return first;
}

bool BlockPools::has_pools_of(const StreamKey& key) const {
  return streams_.contains(key);
}

void BlockPools::rename(PoolIndex first, const StreamKey& key) {
  auto entry = streams_.extract(at(first).key);
  entry.key() = key;
  streams_.insert(std::move(entry));
  for (PoolIndex pool = first; pool < first + kPoolsPerStream; ++pool) at(pool).key = key;
  at(first).stream_is_over = false;
}

std::optional<PoolIndex> BlockPools::forget(const StreamKey& key, std::uint64_t gone) {
  auto found = streams_.find(key);
  if (found == streams_.end()) return std::nullopt;
  const PoolIndex first = found->second;
  // Nobody else's: blocks that are still out must not be kept for a stream of the same handle.
  StreamKey forgotten = key;
  forgotten.private_pool = StreamKey::kForgotten;
  forgotten.thread = gone;
  rename(first, forgotten);
  return first;
}

// ---- records

BlockExtras* BlockPools::extras(const Block* block) {
  auto found = extras_.find(block);
  return found == extras_.end() ? nullptr : &found->second;
}
const BlockExtras* BlockPools::extras(const Block* block) const {
  auto found = extras_.find(block);
  return found == extras_.end() ? nullptr : &found->second;
}

BlockExtras& BlockPools::make_extras(Block* block) {
  block->plain = false;
  return extras_[block];
}

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

SharedPage* BlockPools::shared_page(const void* address) const {
  Page* page = page_at(address);
  if (page == nullptr || kind_of(page) == PageKind::kWhole) return nullptr;
  return kind_of(page) == PageKind::kMixed ? record_of<SmallPage>(page)->shared
                                           : record_of<SharedPage>(page);
}

// Of one of which arenas have parts.
SmallPage& BlockPools::small_page(const void* address) const {
  return *record_of<SmallPage>(page_at(address));
}

[[gnu::always_inline]] inline void BlockPools::add_start(const RunBlock& block) {
  start_table_bytes_ +=
      pages_.find(block.address())
          ->starts.add(StartTable::step_of(block.address()), block.id, StepOfBlock{blocks_});
}

[[gnu::always_inline]] inline void BlockPools::remove_start(const RunBlock& block) {
  pages_.find(block.address())->starts.remove(StartTable::step_of(block.address()));
}

// The last block that starts in a page at or before a step of it; nullptr: none does.
RunBlock* BlockPools::last_start(const StartTable& starts, std::size_t step) const {
  return blocks_.find(starts.last_until(step, StepOfBlock{blocks_}));
}

Span* BlockPools::span_of(const Block& block) const {
  switch (block.kind) {
    case BlockKind::kWhole:
      return static_cast<const RunBlock&>(block).whole->span;
    case BlockKind::kShared:
      return shared_page(block.address())->span;
    case BlockKind::kSmall:
      break;
  }
  return small_page(block.address()).shared->span;
}

SegmentPlacement* BlockPools::placement_of(const Block& block) const {
  switch (block.kind) {
    case BlockKind::kWhole:
      return &static_cast<const RunBlock&>(block).whole->placement;
    case BlockKind::kShared:
      return &shared_page(block.address())->placement;
    case BlockKind::kSmall:
      break;
  }
  return &small_page(block.address()).shared->placement;
}

PoolIndex BlockPools::home_of(const Block& block) const {
  return block.kind == BlockKind::kSmall ? small_page(block.address()).shared->home
                                         : static_cast<const RunBlock&>(block).home;
}

// The block that starts in an earlier page and holds `address` in `page`. What was found last is
// remembered there, and checked before it is believed.
RunBlock* BlockPools::reaching_into(SharedPage* shared, const char* page,
                                    const void* address) const {
  if (shared->covering != 0) {
    RunBlock* last = blocks_.at(shared->covering);
    if (last->kind == BlockKind::kShared && last->address() != nullptr &&
        last->address() <= address && address < last->end()) {
      return last;
    }
  }
  for (const char* before = page - kPageBytes;; before -= kPageBytes) {
    if (shared_page(before) == nullptr) return nullptr;
    RunBlock* block = last_start(pages_.find(before)->starts, StartTable::kSteps - 1);
    if (block == nullptr) continue;
    if (address >= block->end()) return nullptr;
    shared->covering = block->id;
    return block;
  }
}

// The run block that starts at an address of a shared page; nullptr: none does.
RunBlock* BlockPools::run_at(const void* address) const {
  RunBlock* block = blocks_.find(pages_.find(address)->starts.at(StartTable::step_of(address)));
  return block != nullptr && block->address() == address ? block : nullptr;
}

// The run block that holds an address of a shared page; nullptr: none does.
RunBlock* BlockPools::run_with(const void* address) const {
  const StartTable& starts = pages_.find(address)->starts;
  const std::size_t step = StartTable::step_of(address);
  RunBlock* block = last_start(starts, step);
  // It may start later in the address's own step.
  if (block != nullptr && block->address() > address) {
    block = step == 0 ? nullptr : last_start(starts, step - 1);
  }
  if (block != nullptr) return address < block->end() ? block : nullptr;
  return reaching_into(shared_page(address), page_of(static_cast<const char*>(address)), address);
}

Block* BlockPools::find(const void* address) const {
  // Mostly it is the start of one.
  Block* block = block_at(address);
  if (block == nullptr) {
    Page* page = page_at(address);
    if (page == nullptr) return nullptr;
    if (kind_of(page) == PageKind::kWhole) return record_of<RunBlock>(page);
    if (kind_of(page) == PageKind::kMixed) block = record_of<SmallPage>(page)->with(address);
    if (block == nullptr) block = run_with(address);
  }
  return block != nullptr && block->now() == BlockState::kArena ? nullptr : block;
}

// ---- free blocks

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

// How much of a free block stays in front of a request that is cut out of it while pages are short:
// so that the request takes the fewest of the pages in which nothing else lies; of such places so
// that its ends cut the fewest pages in two; else at the low end.
std::size_t BlockPools::sparing_head(const RunBlock& block, std::size_t size_bytes) {
  const char* begin = block.address();
  const char* end = block.end();
  const char* first_page = page_after(begin);
  const char* pages_end = page_of(end);
  auto cost_at = [&](const char* from) {
    const char* until = from + size_bytes;
    if (bytes_between(until, end) < kSmallestShared) until = end;  // its own, too
    const char* taken = std::max<const char*>(page_of(from), first_page);
    const char* taken_end = std::min<const char*>(page_after(until), pages_end);
    const int cuts =
        int{from != begin && page_of(from) != from} + int{until != end && page_of(until) != until};
    return std::pair(bytes_between(taken, taken_end), cuts);
  };
  const char* best = begin;
  auto least = cost_at(begin);
  for (const char* from : {first_page, pages_end - size_bytes, end - size_bytes}) {
    if (from < begin + kSmallestShared || from + size_bytes > end) continue;
    if (const auto cost = cost_at(from); cost < least) {
      best = from;
      least = cost;
    }
  }
  return bytes_between(begin, best);
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
    block = without_head(block, sparing_head(*block, size_bytes));
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

// A fence belongs to a place in time as much as a block to one in memory: blocks with fences are
// joined with none.
[[gnu::always_inline]] inline bool BlockPools::can_join(const RunBlock* left,
                                                        const RunBlock* right) const {
  if (left == nullptr || right == nullptr || left->now() != BlockState::kFree ||
      right->now() != BlockState::kFree || !left->plain || !right->plain) {
    return false;
  }
  if (left->pool != right->pool || left->home != right->home) return false;
  return left->kind == BlockKind::kShared || (left->whole->span == right->whole->span &&
                                              left->whole->placement == right->whole->placement);
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

// ---- whole pages out of pools

// Forgets a block of whole pages, in no index.
BlockPools::Pages BlockPools::drop_pages(RunBlock* block) {
  Pages pages{span_of(*block), block->address(), block->size_bytes(), *placement_of(*block)};
  at(block->home).run_bytes -= pages.size_bytes;
  if (block->kind == BlockKind::kShared) {
    if (RunBlock* before = previous_of(block)) before->shared.next = 0;
    if (RunBlock* after = next_of(block)) after->shared.previous = 0;
    for (char* page = pages.base; page < pages.base + pages.size_bytes; page += kPageBytes) {
      shared_pages_.drop(shared_page(page));
    }
  } else {
    own_pages_.drop(block->whole);
  }
  set_pages(pages.base, pages.size_bytes, nullptr);
  blocks_.drop(block);
  return pages;
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

BlockPools::Pages BlockPools::take_pages(Pool& pool, std::size_t size_bytes) {
  RunBlock* block = fit_aligned(pool, kPageBytes, size_bytes);
  if (block == nullptr) return {};
  unlink(block);
  return cut_pages(block, size_bytes, size_bytes);
}

std::vector<RunBlock*> BlockPools::with_pages(const Pool& pool, bool fenced_too) const {
  std::vector<RunBlock*> found;
  for (const FreeIndex* index : {&pool.own, &pool.guests}) {
    for (RunBlock* block = index->smallest_of(kPageBytes); block != nullptr;
         block = index->after(block)) {
      if (block->plain || fenced_too) found.push_back(block);
    }
  }
  return found;
}

std::size_t BlockPools::whole_page_bytes(const RunBlock& block) {
  const char* begin = page_after(block.address());
  const char* end = page_of(block.end());
  return begin < end ? bytes_between(begin, end) : 0;
}

std::size_t BlockPools::free_page_bytes() const {
  std::size_t bytes = 0;
  for (const auto& pool : pools_) {
    for (const RunBlock* block : with_pages(*pool, true)) bytes += whole_page_bytes(*block);
  }
  return bytes;
}

std::size_t BlockPools::bytes_in_use(PoolIndex first) const {
  std::size_t bytes = 0;
  for (PoolIndex pool = first; pool < first + kPoolsPerStream; ++pool) {
    bytes += at(pool).run_bytes - at(pool).own.free_bytes();
  }
  return bytes;
}

BlockPools::Pages BlockPools::release_pages(RunBlock* block, std::size_t most_bytes) {
  unlink(block);
  return cut_pages(block, kPageBytes, most_bytes & ~(kPageBytes - 1));
}

bool BlockPools::is_fenced_guest(const RunBlock* guest) {
  return guest->address() != nullptr && guest->now() == BlockState::kFree && !guest->plain &&
         guest->pool != guest->home;
}

std::vector<RunBlock*> BlockPools::fenced_guests(const Pool& pool) const {
  std::vector<RunBlock*> out;
  for (RunBlock* block = pool.guests.smallest(); block != nullptr;
       block = pool.guests.after(block)) {
    if (!block->plain) out.push_back(block);
  }
  return out;
}

// Whether new pages beside the page of `address` would become part of its run: they come with their
// span's advice and join only pages that have the same.
bool BlockPools::takes_new_pages(const Pool& pool, const Span& span, const char* address) const {
  const SharedPage* page = shared_page(address);
  return page != nullptr && page->home == pool.index && page->span == &span &&
         page->placement == span.placement;
}

std::size_t BlockPools::free_bytes_before(const Pool& pool, const Span& span,
                                          const char* boundary) const {
  if (!takes_new_pages(pool, span, boundary - 1)) return 0;
  const RunBlock* last = run_with(boundary - 1);
  const bool joins = last != nullptr && last->now() == BlockState::kFree && last->plain;
  return joins ? last->size_bytes() : 0;
}

std::size_t BlockPools::free_bytes_after(const Pool& pool, const Span& span,
                                         const char* boundary) const {
  if (!takes_new_pages(pool, span, boundary)) return 0;
  const RunBlock* first = run_at(boundary);
  const bool joins = first != nullptr && first->now() == BlockState::kFree && first->plain;
  return joins ? first->size_bytes() : 0;
}

void BlockPools::each_extras(const std::function<void(BlockExtras&)>& visit) {
  for (auto& [block, extras] : extras_) visit(extras);
}

// ---- small objects

void BlockPools::begin_small_run(RunBlock* run) {
  Page* page = page_at(run->address());
  if (kind_of(page) == PageKind::kShared) {
    SmallPage* small = small_pages_.make(record_of<SharedPage>(page));
    set_pages(page_of(run->address()), kPageBytes, tagged(small, PageKind::kMixed));
  }
  ++small_page(run->address()).runs;
  run->set(BlockState::kArena);
}

RunBlock* BlockPools::end_small_run(char* base) {
  SmallPage& small = small_page(base);
  RunBlock* run = run_at(base);
  small.each(*run, [](const Block&) { require(false, "an arena gives back live small objects"); });
  run->set(BlockState::kReleasing);
  if (--small.runs == 0) {
    set_pages(page_of(base), kPageBytes, tagged(small.shared, PageKind::kShared));
    small_pages_.drop(&small);
  }
  return run;
}

Block* BlockPools::add_small(char* address, std::size_t size_bytes) {
  SmallPage& page = small_page(address);
  return page.add(address, size_bytes, page.shared->home);
}

void BlockPools::remove_small(Block* block) {
  small_page(block->address()).remove(block);
}

// ---- looking at all of it

void BlockPools::each_block(const Span& span, const std::function<void(const Block&)>& visit,
                            const std::function<void(const RunBlock& run)>& visit_small_run) const {
  // What is free in the span, mostly nearly all of it, has no blocks.
  auto free = span.free.begin();
  for (char* at_page = span.base; at_page < span.base + span.size_bytes; at_page += kPageBytes) {
    if (free != span.free.end() && at_page == span.base + free->first) {
      at_page += free->second - kPageBytes;
      ++free;
      continue;
    }
    const PageEntry* entry = pages_.find(at_page);
    const Page* page = entry == nullptr ? nullptr : entry->page.load(std::memory_order_relaxed);
    if (page == nullptr) continue;
    if (kind_of(page) == PageKind::kWhole) {
      const auto* block = record_of<RunBlock>(page);
      if (block->address() == at_page) visit(*block);
    } else {
      entry->starts.each(
          [&](std::uint32_t id) {
            const RunBlock& run = *blocks_.at(id);
            if (run.now() != BlockState::kArena) {
              visit(run);
              return;
            }
            if (visit_small_run) visit_small_run(run);
            record_of<SmallPage>(page)->each(run, visit);
          },
          StepOfBlock{blocks_});
    }
  }
}

std::size_t BlockPools::metadata_bytes() const {
  std::size_t tables = start_table_bytes_;
  for (const auto& pool : pools_) {
    tables += sizeof(Pool) + pool->own.table_bytes() + pool->guests.table_bytes();
  }
  return blocks_.bytes() + own_pages_.bytes() + shared_pages_.bytes() + tables +
         small_pages_.bytes();
}

void BlockPools::check_invariants(const std::vector<std::unique_ptr<Span>>& spans) const {
  std::size_t free_bytes = 0;
  std::vector<std::size_t> run_bytes(pools_.size());
  auto check_neighbour = [&](const RunBlock& run) {
    const RunBlock* after = neighbour_after(&run);
    if (run.kind != BlockKind::kShared || after == nullptr) return;
    require(after->address() == run.end() && after->shared.previous == run.id,
            "neighbours in a run do not meet");
  };
  auto check_small_run = [&](const RunBlock& run) {
    run_bytes[run.home] += run.size_bytes();
    require(run.kind == BlockKind::kShared && page_of(run.address()) == page_of(run.end() - 1),
            "what an arena has leaves its page");
    check_neighbour(run);
  };
  for (const auto& span : spans) {
    auto check = [&](const Block& block) {
      require(address_of(block.address()) % kGranule == 0 && block.size_bytes() % kGranule == 0,
              "a block is not made of granules");
      require(block.address() >= span->base && block.end() <= span->base + span->size_bytes,
              "a block leaves its span");
      require(find(block.address()) == &block && block_at(block.address()) == &block,
              "a block cannot be found by its start");
      require(span_of(block) == span.get(), "a block does not know its span");
      if (block.now() == BlockState::kLive) {
        require(find(block.end() - 1) == &block, "a live block cannot be found by its last byte");
        require(block.real.references != 0, "a live block has no indirect record");
      }
      if (block.kind == BlockKind::kSmall) return;
      const auto& run = static_cast<const RunBlock&>(block);
      run_bytes[run.home] += run.size_bytes();
      check_neighbour(run);
      if (block.now() != BlockState::kFree) return;
      free_bytes += block.size_bytes();
      require(!can_join(&run, neighbour_after(&run)), "free neighbours are not joined");
    };
    each_block(*span, check, check_small_run);
  }
  std::size_t indexed_bytes = 0;
  for (const auto& pool : pools_) {
    indexed_bytes += pool->own.free_bytes() + pool->guests.free_bytes();
    require(run_bytes[pool->index] == pool->run_bytes, "a pool miscounts the bytes of its blocks");
    for (const RunBlock* block : pool->away) {
      require(block->now() == BlockState::kFree && block->home == pool->index &&
                  block->pool != pool->index,
              "a block that is away is at home");
    }
  }
  require(free_bytes == indexed_bytes, "free blocks and the index differ");
}

}  // namespace uvm
