#include "allocator/heap/page_runs.hpp"

namespace uvm {

// Makes only the record: the caller must set the directory's entries.
PageBlock* PageRuns::new_granular_block(char* address, std::size_t size_bytes,
                                        PoolIndex owning_pool, const OwnPages& pages) {
  OwnPages* own = directory_.own_pages().make(pages);
  try {
    PageBlock* block = new_block(BlockKind::kPageGranular, address, size_bytes, owning_pool);
    block->own_pages = own;
    return block;
  } catch (const std::bad_alloc&) {
    directory_.own_pages().drop(own);
    throw;
  }
}

PageBlock* PageRuns::add(const PageRun& run, BlockKind kind, PoolIndex owning_pool) {
  directory_.prepare(run.base, run.size_bytes);
  PageBlock* block = nullptr;
  if (kind == BlockKind::kPageGranular) {
    block = new_granular_block(run.base, run.size_bytes, owning_pool, {run.span, run.placement});
    directory_.set_granular(block, run.base, run.size_bytes);
  } else {
    block = new_block(BlockKind::kPacked, run.base, run.size_bytes, owning_pool);
    try {
      directory_.add_packed(*block, {owning_pool, 0, run.span, run.placement});
    } catch (const std::bad_alloc&) {
      blocks().drop(block);
      throw;
    }
    link_to_neighbours(block, run);
  }
  block->real.origin = Place::device(run.span->device);
  return block;
}

// Links the block of new packed pages into the chains of the adjacent runs.
void PageRuns::link_to_neighbours(PageBlock* block, const PageRun& run) {
  auto joins = [&](const PackedPage* page) {
    return page != nullptr && page->owning_pool == block->owning_pool && page->span == run.span &&
           page->placement == run.placement;
  };
  if (joins(directory_.packed_page(run.base - 1))) {
    PageBlock* last = directory_.run_with(run.base - 1);
    if (last != nullptr && last->end() == run.base) {
      block->chain.previous = last->id;
      last->chain.next = block->id;
    }
  }
  if (joins(directory_.packed_page(block->end()))) {
    PageBlock* first = directory_.run_at(block->end());
    if (first != nullptr) {
      block->chain.next = first->id;
      first->chain.previous = block->id;
    }
  }
}

PageRun PageRuns::remove(PageBlock* block) {
  const PageRun run{directory_.span_of(*block), block->address(), block->size_bytes(),
                    *directory_.placement_of(*block)};
  if (block->kind == BlockKind::kPacked) {
    if (PageBlock* before = previous_packed(block)) before->chain.next = 0;
    if (PageBlock* after = next_packed(block)) after->chain.previous = 0;
    directory_.remove_packed(run.base, run.size_bytes);
  } else {
    directory_.own_pages().drop(block->own_pages);
    directory_.remove_granular(run.base, run.size_bytes);
  }
  blocks().drop(block);
  return run;
}

std::pair<PageBlock*, PageBlock*> PageRuns::split_granular(PageBlock* block,
                                                           std::size_t size_bytes) {
  const std::size_t rest_bytes = block->size_bytes() - size_bytes;
  char* at_cut = block->address() + size_bytes;
  PageBlock* left = block;
  PageBlock* right = block;
  if (size_bytes <= rest_bytes) {
    left = new_granular_block(block->address(), size_bytes, block->owning_pool, *block->own_pages);
    block->place_at(at_cut);
    block->real.resize(rest_bytes);
    directory_.set_granular(left, left->address(), size_bytes);
  } else {
    right = new_granular_block(at_cut, rest_bytes, block->owning_pool, *block->own_pages);
    block->real.resize(size_bytes);
    directory_.set_granular(right, at_cut, rest_bytes);
  }
  left->pool = right->pool = block->pool;
  left->real.origin = right->real.origin = block->real.origin;
  return {left, right};
}

// Keeps the record of the larger block.
PageBlock* PageRuns::join_granular(PageBlock* left, PageBlock* right) {
  char* address = left->address();
  PageBlock* kept = left->size_bytes() >= right->size_bytes() ? left : right;
  PageBlock* gone = kept == left ? right : left;
  directory_.set_granular(kept, gone->address(), gone->size_bytes());
  kept->place_at(address);
  kept->real.granules += gone->real.granules;
  directory_.own_pages().drop(gone->own_pages);
  blocks().drop(gone);
  return kept;
}

}  // namespace uvm
