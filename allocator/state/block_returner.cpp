#include "allocator/state/block_returner.hpp"

#include <array>

namespace uvm {

void BlockReturner::give_back(BlockChain blocks) noexcept {
  if (blocks.empty()) return;
  BlockChain small;
  {
    const HeapGuard heap(state_);
    while (!blocks.empty()) {
      Block* block = blocks.pop();
      if (block->kind == BlockKind::kSmall) {
        small.push(block);
        continue;
      }
      heap->pools.put(static_cast<PageBlock*>(block), heap->pools.at(block->pool));
    }
  }
  if (!small.empty()) give_back_small(std::move(small));
}

// Gives small objects back. Consecutive ones of the same pool and size take one call.
void BlockReturner::give_back_small(BlockChain blocks) noexcept {
  while (!blocks.empty()) {
    const PoolIndex pool = blocks.first()->pool;
    const std::size_t size_bytes = blocks.first()->size_bytes();
    std::array<void*, policy::kReturnedBlocks> addresses;
    std::size_t count = 0;
    {
      const HeapGuard heap(state_);
      for (; !blocks.empty() && count < addresses.size(); ++count) {
        if (blocks.first()->pool != pool || blocks.first()->size_bytes() != size_bytes) break;
        Block* block = blocks.pop();
        addresses[count] = block->address();
        heap->pools.directory().remove_small(block);
      }
    }
    arenas_.free(pool, addresses.data(), count, size_bytes);
  }
}

void BlockReturner::give_back_plain(Block* block) noexcept {
  Later back(*this);
  back.blocks.push(block);
  if (block->kind != BlockKind::kSmall) return;
  ThreadCache* cache = caches_.local();
  StreamCache* of = cache == nullptr ? nullptr : cache->stream(stream_of(block->pool));
  if (of == nullptr) return;
  const CacheOwnerGuard inside(*cache);
  of->flush_some(*block, &back.blocks);
}

bool BlockReturner::flush(StreamIndex pools, CachedKind kind, bool* any_large) {
  Later back(*this);
  {
    ThreadCaches::StopTheWorld stopped(caches_);
    caches_.flush(pools, kind, &back.blocks);
  }
  *any_large = false;
  back.blocks.each(
      [&](const Block& block) { *any_large = *any_large || block.size_bytes() >= kLargeBytes; });
  return !back.blocks.empty();
}

void BlockReturner::flush_all() {
  Later back(*this);
  ThreadCaches::StopTheWorld stopped(caches_);
  caches_.flush_all(&back.blocks);
}

}  // namespace uvm
