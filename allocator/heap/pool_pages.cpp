// The part of BlockPools that adds and removes whole pages.
#include <algorithm>
#include <tuple>
#include <utility>

#include "allocator/heap/block_pools.hpp"
#include "allocator/heap/page_fit.hpp"

namespace uvm {

PageBlock* BlockPools::add_pages(const PageRun& run, Pool& owning_pool) {
  owning_pool.own.prepare();
  const bool is_whole = owning_pool.pool_class == PoolClass::kPageGranular;
  PageBlock* block =
      runs_.add(run, is_whole ? BlockKind::kPageGranular : BlockKind::kPacked, owning_pool.index);
  owning_pool.run_bytes += run.size_bytes;
  return block;
}

PageRun BlockPools::take_pages(Pool& pool, std::size_t size_bytes) {
  PageBlock* block = fit_aligned(pool, kPageBytes, size_bytes);
  if (block == nullptr) return {};
  unlink(block);
  return cut_pages(block, size_bytes, size_bytes);
}

PageBlock* BlockPools::take_with_page(Pool& pool) {
  PageBlock* block = fit_aligned(pool, kPageBytes, kPageBytes);
  if (block != nullptr) unlink(block);
  return block;
}

namespace {

void add_with_pages(const FreeIndex& index, bool fenced_too, std::vector<PageBlock*>* found) {
  for (PageBlock* block = index.smallest_of(kPageBytes); block != nullptr;
       block = index.after(block)) {
    if (block->has_no_side_state || fenced_too) found->push_back(block);
  }
}

}  // namespace

std::vector<PageBlock*> BlockPools::with_pages(const Pool& pool, bool fenced_too) const {
  std::vector<PageBlock*> found;
  add_with_pages(pool.own, fenced_too, &found);
  add_with_pages(pool.displaced_here, fenced_too, &found);
  return found;
}

std::vector<PageBlock*> BlockPools::displaced_with_pages(const Pool& pool, bool fenced_too) const {
  std::vector<PageBlock*> found;
  add_with_pages(pool.displaced_here, fenced_too, &found);
  return found;
}

std::size_t BlockPools::whole_page_bytes(const PageBlock& block) {
  const char* begin = page_after(block.address());
  const char* end = page_of(block.end());
  return begin < end ? bytes_between(begin, end) : 0;
}

std::size_t BlockPools::free_page_bytes() const {
  std::size_t bytes = 0;
  for (const auto& pool : all()) {
    for (const PageBlock* block : with_pages(*pool, true)) bytes += whole_page_bytes(*block);
  }
  return bytes;
}

std::size_t BlockPools::bytes_in_use(StreamIndex stream) const {
  std::size_t bytes = 0;
  for (const auto& pool : table_.pools_of(stream))
    bytes += pool->run_bytes - pool->own.free_bytes();
  return bytes;
}

PageRun BlockPools::release_pages(PageBlock* block, std::size_t most_bytes) {
  unlink(block);
  return cut_pages(block, kPageBytes, most_bytes & ~(kPageBytes - 1));
}

// Takes whole pages out of a block that is in no index: at least `least_bytes` and at most
// `most_bytes`. Puts the rest back. The result's base is nullptr if the block has too few pages.
PageRun BlockPools::cut_pages(PageBlock* block, std::size_t least_bytes, std::size_t most_bytes) {
  Pool& pool = at(block->pool);
  char* begin = page_after(block->address());
  char* end = page_of(block->end());
  // A tail that is too small for a block keeps its page.
  if (std::size_t tail = bytes_between(end, block->end()); tail != 0 && tail < kSmallestPacked) {
    end -= kPageBytes;
  }
  if (begin >= end || bytes_between(begin, end) < least_bytes) {
    put(block, pool);
    return {};
  }
  end = begin + std::min(bytes_between(begin, end), most_bytes);
  PageBlock* head = nullptr;
  PageBlock* tail = nullptr;
  try {
    if (block->address() < begin) {
      std::tie(head, block) = runs_.split(block, bytes_between(block->address(), begin));
    }
    if (end < block->end()) std::tie(block, tail) = runs_.split(block, bytes_between(begin, end));
  } catch (const std::bad_alloc&) {
    put(block, pool);
    if (head != nullptr) put(head, pool);
    throw;
  }
  at(block->owning_pool).run_bytes -= block->size_bytes();
  const PageRun run = runs_.remove(block);
  for (PageBlock* rest : {head, tail}) {
    if (rest != nullptr) put(rest, pool);
  }
  return run;
}

// Returns whether new pages beside the page of `address` would become part of that page's run. New
// pages have their span's advice, and join only pages with the same advice.
bool BlockPools::takes_new_pages(const Pool& pool, const Span& span, const char* address) const {
  const PackedPage* page = directory().packed_page(address);
  return page != nullptr && page->owning_pool == pool.index && page->span == &span &&
         page->placement == span.placement;
}

std::size_t BlockPools::free_bytes_before(const Pool& pool, const Span& span,
                                          const char* boundary) const {
  if (!takes_new_pages(pool, span, boundary - 1)) return 0;
  const PageBlock* last = directory().run_with(boundary - 1);
  const bool joins = last != nullptr && last->now() == BlockState::kFree && last->has_no_side_state;
  return joins ? last->size_bytes() : 0;
}

std::size_t BlockPools::free_bytes_after(const Pool& pool, const Span& span,
                                         const char* boundary) const {
  if (!takes_new_pages(pool, span, boundary)) return 0;
  const PageBlock* first = directory().run_at(boundary);
  const bool joins =
      first != nullptr && first->now() == BlockState::kFree && first->has_no_side_state;
  return joins ? first->size_bytes() : 0;
}

}  // namespace uvm
