#include <uvmalloc/allocator/heap/block_pools.hpp>

#include <algorithm>
#include <utility>

#include <uvmalloc/allocator/heap/heap_invariants.hpp>
#include <uvmalloc/allocator/heap/page_fit.hpp>

namespace uvm {
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
  small.each(*run, [](const Block&) {
    require_invariant(false, "an arena gives back live small objects");
  });
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

}  // namespace uvm
