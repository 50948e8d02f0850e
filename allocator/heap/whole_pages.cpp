// Of BlockPools: whole pages that leave pools.
#include <algorithm>
#include <tuple>
#include <utility>

#include <uvmalloc/allocator/heap/block_pools.hpp>
#include <uvmalloc/allocator/heap/page_fit.hpp>

namespace uvm {

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

BlockPools::Pages BlockPools::take_pages(Pool& pool, std::size_t size_bytes) {
  RunBlock* block = fit_aligned(pool, kPageBytes, size_bytes);
  if (block == nullptr) return {};
  unlink(block);
  return cut_pages(block, size_bytes, size_bytes);
}

RunBlock* BlockPools::take_with_page(Pool& pool) {
  RunBlock* block = fit_aligned(pool, kPageBytes, kPageBytes);
  if (block != nullptr) unlink(block);
  return block;
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

}  // namespace uvm
