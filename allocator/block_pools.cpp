#include <uvmalloc/allocator/block_pools.hpp>

#include <algorithm>
#include <cstdlib>

#include <uvmalloc/runtime/log.hpp>

namespace uvm {
namespace {

// A fence belongs to a place in time as much as a block to one in memory: blocks with fences are
// joined with none.
bool joinable(const Block* block) {
  return block->state == BlockState::kFree && block->fences.empty();
}

template <class Tree>
Block* best_fit(Tree& tree, std::size_t size_bytes) {
  Block probe;
  probe.size_bytes = size_bytes;
  auto found = tree.lower_bound(probe);
  return found == tree.end() ? nullptr : &*found;
}

void require(bool holds, const char* what) {
  if (holds) return;
  log_line(LogLevel::kError, fmt::format("broken invariant: {}", what));
  std::abort();
}

}  // namespace

BlockPools::~BlockPools() {
  for (auto& [key, pool] : pools_) {
    pool->own.clear();
    pool->guests.clear();
    pool->away.clear();
  }
  for (auto& [base, segment] : segments_) {
    for (Block* block = segment->first; block != nullptr;) {
      Block* next = block->next;
      delete block;
      block = next;
    }
  }
}

Pool& BlockPools::pool(const PoolKey& key) {
  auto& slot = pools_[key];
  if (slot == nullptr) {
    slot = std::make_unique<Pool>();
    slot->key = key;
  }
  return *slot;
}

std::vector<Pool*> BlockPools::pools() {
  std::vector<Pool*> out;
  for (auto& [key, pool] : pools_) out.push_back(pool.get());
  return out;
}

void BlockPools::unlink(Block* block) {
  bool guest = block->pool != block->segment->home;
  FreeTree& tree = guest ? block->pool->guests : block->pool->own;
  tree.erase(tree.iterator_to(*block));
  if (guest) {
    AwayTree& away = block->segment->home->away;
    away.erase(away.iterator_to(*block));
  }
  // Its pool stays known: what the caller does not need goes back there.
  block->state = BlockState::kReleasing;
}

Block* BlockPools::take(FreeTree& tree, std::size_t size_bytes) {
  Block* block = best_fit(tree, size_bytes);
  if (block != nullptr) unlink(block);
  return block;
}

Block* BlockPools::take(AwayTree& tree, std::size_t size_bytes) {
  Block* block = best_fit(tree, size_bytes);
  if (block != nullptr) unlink(block);
  return block;
}

void BlockPools::trim(Block* block, std::size_t size_bytes, Pool* pool) {
  std::size_t rest = block->size_bytes - size_bytes;
  if (rest == 0) return;
  Segment* segment = block->segment;
  char* cut = block->address + size_bytes;
  auto* right = new Block;
  right->address = cut;
  right->size_bytes = rest;
  right->fences.swap(block->fences);
  block->size_bytes = size_bytes;
  if (segment->is_large()) {
    segment->size_bytes = size_bytes;
    right->segment = new_segment(segment->span, segment->home, cut, rest);
    right->segment->placement = segment->placement;
    right->segment->first = right;
  } else {
    right->segment = segment;
    right->previous = block;
    right->next = block->next;
    if (right->next != nullptr) right->next->previous = right;
    block->next = right;
    segment->starts[static_cast<std::size_t>(cut - segment->base) / kSmallGranule] = right;
  }
  put(right, pool);
}

Segment* BlockPools::new_segment(Span* span, Pool* home, char* base, std::size_t size_bytes) {
  auto segment = std::make_unique<Segment>();
  segment->span = span;
  segment->home = home;
  segment->base = base;
  segment->size_bytes = size_bytes;
  pages_.set(base, size_bytes, segment.get());
  return (segments_[base] = std::move(segment)).get();
}

void BlockPools::drop_segment(Segment* segment) {
  pages_.set(segment->base, segment->size_bytes, nullptr);
  segments_.erase(segment->base);
}

Block* BlockPools::add_segment(Span* span, char* base, std::size_t size_bytes, Pool* home) {
  Segment* segment = new_segment(span, home, base, size_bytes);
  segment->placement = span->placement;
  auto* block = new Block;
  block->address = base;
  block->size_bytes = size_bytes;
  block->segment = segment;
  block->state = BlockState::kReleasing;
  segment->first = block;
  if (home->key.size_class == SizeClass::kSmall) {
    segment->starts.assign(size_bytes / kSmallGranule, nullptr);
    segment->starts[0] = block;
  }
  return block;
}

Block* BlockPools::neighbour_before(const Block* block) const {
  if (!block->segment->is_large()) return block->previous;
  Segment* before = pages_.find(block->address - 1);
  return before != nullptr && before->is_large() ? before->first : nullptr;
}

Block* BlockPools::neighbour_after(const Block* block) const {
  if (!block->segment->is_large()) return block->next;
  Segment* after = pages_.find(block->address + block->size_bytes);
  return after != nullptr && after->is_large() ? after->first : nullptr;
}

bool BlockPools::can_join(const Block* left, const Block* right) const {
  if (left == nullptr || right == nullptr || !joinable(left) || !joinable(right)) return false;
  const Segment& a = *left->segment;
  const Segment& b = *right->segment;
  return left->pool == right->pool && a.span == b.span && a.home == b.home &&
         a.placement == b.placement;
}

// One of them is in the trees, the other is about to be; the result is in none.
Block* BlockPools::join(Block* left, Block* right) {
  for (Block* block : {left, right}) {
    if (block->free_hook.is_linked()) unlink(block);
  }
  left->size_bytes += right->size_bytes;
  if (left->segment->is_large()) {
    Segment* gone = right->segment;
    std::size_t size_bytes = gone->size_bytes;
    char* base = gone->base;
    drop_segment(gone);
    left->segment->size_bytes += size_bytes;
    pages_.set(base, size_bytes, left->segment);
  } else {
    Segment& segment = *left->segment;
    segment.starts[static_cast<std::size_t>(right->address - segment.base) / kSmallGranule] =
        nullptr;
    left->next = right->next;
    if (left->next != nullptr) left->next->previous = left;
  }
  delete right;
  return left;
}

void BlockPools::put(Block* block, Pool* pool) {
  auto settle = [&](Block* settled) {
    settled->state = BlockState::kFree;
    settled->pool = pool;
    return settled;
  };
  settle(block);
  if (Block* before = neighbour_before(block); can_join(before, block)) {
    block = settle(join(before, block));
  }
  if (Block* after = neighbour_after(block); can_join(block, after)) {
    block = settle(join(block, after));
  }
  if (pool == block->segment->home) {
    pool->own.insert(*block);
  } else {
    pool->guests.insert(*block);
    block->segment->home->away.insert(*block);
  }
}

void BlockPools::release_free_segments(Pool* pool,
                                       const std::function<void(const Segment&)>& each) {
  for (FreeTree* tree : {&pool->own, &pool->guests}) {
    for (auto it = tree->begin(); it != tree->end();) {
      Block* block = &*it++;
      Segment* segment = block->segment;
      if (block->size_bytes != segment->size_bytes || !block->fences.empty()) continue;
      unlink(block);
      delete block;
      each(*segment);
      drop_segment(segment);
    }
  }
}

Block* BlockPools::find(const void* address, bool* is_start) const {
  Segment* segment = pages_.find(address);
  if (segment == nullptr) return nullptr;
  Block* block = segment->first;
  if (!segment->is_large()) {
    auto granule = (address_of(address) - address_of(segment->base)) / kSmallGranule;
    while (segment->starts[granule] == nullptr) --granule;
    block = segment->starts[granule];
  }
  *is_start = block->address == address;
  return block;
}

void BlockPools::each_block(const std::function<void(const Block&)>& visit) const {
  for (const auto& [base, segment] : segments_) {
    for (const Block* block = segment->first; block != nullptr; block = block->next) visit(*block);
  }
}

void BlockPools::check_invariants() const {
  std::size_t free_blocks = 0;
  for (const auto& [base, segment] : segments_) {
    require(address_of(base) % kPageBytes == 0 && segment->size_bytes % kPageBytes == 0,
            "a segment is not made of whole pages");
    require(base >= segment->span->base &&
                base + segment->size_bytes <= segment->span->base + segment->span->size_bytes,
            "a segment leaves its span");
    require(pages_.find(base) == segment.get() &&
                pages_.find(base + segment->size_bytes - 1) == segment.get(),
            "the page map does not know a segment");
    char* expected = base;
    const Block* before = nullptr;
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      require(block->address == expected, "blocks of a segment leave a gap or overlap");
      require(block->segment == segment.get() && block->previous == before,
              "a block is not linked to its segment");
      require(block->state != BlockState::kFree || block->free_hook.is_linked(),
              "a free block is in no tree");
      require(block->state == BlockState::kFree || !block->free_hook.is_linked(),
              "a block with a caller is in a tree");
      require(block->state != BlockState::kLive || block->real.alive(),
              "a live block has no record");
      require(!(before != nullptr && can_join(before, block)),
              "two free neighbours are not joined");
      if (block->state == BlockState::kFree) ++free_blocks;
      expected += block->size_bytes;
      before = block;
    }
    require(expected == base + segment->size_bytes, "blocks do not fill their segment");
  }
  std::size_t in_trees = 0;
  for (const auto& [key, pool] : pools_) {
    in_trees += pool->own.size() + pool->guests.size();
    for (const Block& block : pool->own) {
      require(block.pool == pool.get() && block.segment->home == pool.get(),
              "an own block is a guest");
    }
    for (const Block& block : pool->guests) {
      require(block.pool == pool.get() && block.segment->home != pool.get(), "a guest is at home");
      require(block.away_hook.is_linked(), "a guest is not missed at home");
    }
  }
  require(in_trees == free_blocks, "the trees hold other blocks than the segments' free ones");
}

}  // namespace uvm
