// Cuts runs of whole pages into blocks and joins the blocks again. A run of packed pages is a chain
// of adjacent blocks. Pages added next to a run of the same pool, span and placement extend that
// run's chain. This class does not know which blocks are free.
//
// Guarded by the state lock. Blocks that are split, joined or removed must be in no index.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include "allocator/heap/page_directory.hpp"

namespace uvm {

// A run of whole pages that no block uses.
struct PageRun {
  Span* span = nullptr;
  char* base = nullptr;
  std::size_t size_bytes = 0;
  SegmentPlacement placement;
};

class PageRuns {
 public:
  PageRuns() = default;
  PageRuns(const PageRuns&) = delete;
  PageRuns& operator=(const PageRuns&) = delete;

  PageDirectory& directory() { return directory_; }
  const PageDirectory& directory() const { return directory_; }

  // Turns the pages into one block of the pool `owning_pool`, packed or page-granular. On
  // std::bad_alloc nothing has changed.
  PageBlock* add(const PageRun& run, BlockKind kind, PoolIndex owning_pool);
  // Removes a block, which must cover whole pages.
  PageRun remove(PageBlock* block);

  // Cuts a block after its first `size_bytes`. The larger part of a page-granular block keeps the
  // record, so that fewer entries of the directory change. On std::bad_alloc nothing has changed.
  [[gnu::always_inline]] std::pair<PageBlock*, PageBlock*> split(PageBlock* block,
                                                                 std::size_t size_bytes) {
    if (block->kind == BlockKind::kPageGranular) return split_granular(block, size_bytes);
    PageBlock* right = new_block(BlockKind::kPacked, block->address() + size_bytes,
                                 block->size_bytes() - size_bytes, block->owning_pool);
    try {
      directory_.add_start(*right);
    } catch (const std::bad_alloc&) {
      blocks().drop(right);
      throw;
    }
    block->real.resize(size_bytes);
    right->chain = {block->id, block->chain.next};
    if (PageBlock* after = next_packed(right)) after->chain.previous = right->id;
    block->chain.next = right->id;
    right->pool = block->pool;
    right->real.origin = block->real.origin;
    return {block, right};
  }

  // Return the adjacent block of the same kind (of a packed block: in the same run), or nullptr.
  PageBlock* previous_packed(const PageBlock* block) const {
    return directory_.blocks().find(block->chain.previous);
  }
  PageBlock* next_packed(const PageBlock* block) const {
    return directory_.blocks().find(block->chain.next);
  }
  PageBlock* previous_granular(const PageBlock* block) const {
    return directory_.granular_at(block->address() - 1);
  }
  PageBlock* next_granular(const PageBlock* block) const {
    return directory_.granular_at(block->end());
  }

  // Join two neighbours and return the joined block. Packed blocks keep the left block's record.
  [[gnu::always_inline]] PageBlock* join_packed(PageBlock* left, PageBlock* right) {
    directory_.remove_start(*right);
    left->real.granules += right->real.granules;
    left->chain.next = right->chain.next;
    if (PageBlock* after = next_packed(left)) after->chain.previous = left->id;
    blocks().drop(right);
    return left;
  }
  PageBlock* join_granular(PageBlock* left, PageBlock* right);

 private:
  PageBlockStore& blocks() { return directory_.blocks(); }

  [[gnu::always_inline]] PageBlock* new_block(BlockKind kind, char* address, std::size_t size_bytes,
                                              PoolIndex owning_pool) {
    PageBlock* block = blocks().make(owning_pool);
    block->kind = kind;
    block->place_at(address);
    block->real.resize(size_bytes);
    block->pool = owning_pool;
    block->real.indirect = nullptr;
    block->real.references = 0;
    if (kind == BlockKind::kPacked) block->chain = {0, 0};
    block->set(BlockState::kReleasing);
    return block;
  }
  PageBlock* new_granular_block(char* address, std::size_t size_bytes, PoolIndex owning_pool,
                                const OwnPages& pages);
  std::pair<PageBlock*, PageBlock*> split_granular(PageBlock* block, std::size_t size_bytes);
  void link_to_neighbours(PageBlock* block, const PageRun& run);

  PageDirectory directory_;
};

}  // namespace uvm
