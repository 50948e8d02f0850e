#include "allocator/heap/page_directory.hpp"

#include <new>

#include "allocator/heap/heap_invariants.hpp"
#include "allocator/heap/page_fit.hpp"

namespace uvm {

PackedPage* PageDirectory::packed_page(const void* address) const {
  Page* page = page_at(address);
  if (page == nullptr || kind_of(page) == PageKind::kPageGranular) return nullptr;
  return kind_of(page) == PageKind::kMixed ? record_of<SmallPage>(page)->shared
                                           : record_of<PackedPage>(page);
}

Span* PageDirectory::span_of(const Block& block) const {
  if (block.kind == BlockKind::kPageGranular)
    return static_cast<const PageBlock&>(block).own_pages->span;
  return packed_page(block.address())->span;
}

SegmentPlacement* PageDirectory::placement_of(const Block& block) const {
  if (block.kind == BlockKind::kPageGranular)
    return &static_cast<const PageBlock&>(block).own_pages->placement;
  return &packed_page(block.address())->placement;
}

PoolIndex PageDirectory::owning_pool_of(const Block& block) const {
  return block.kind == BlockKind::kSmall ? packed_page(block.address())->owning_pool
                                         : static_cast<const PageBlock&>(block).owning_pool;
}

// Returns the last block that starts in a page at or before a step, or nullptr.
PageBlock* PageDirectory::last_start(const BlockStartMap& starts, std::size_t step) const {
  return blocks_.find(starts.last_until(step, StepOfBlock{blocks_}));
}

// Returns the block that starts in an earlier page than `page` and holds `address`, or nullptr. The
// page's record caches the last result, which is checked before use.
PageBlock* PageDirectory::reaching_into(PackedPage* shared, const char* page,
                                        const void* address) const {
  if (shared->covering != 0) {
    PageBlock* last = blocks_.at(shared->covering);
    if (last->kind == BlockKind::kPacked && last->address() != nullptr &&
        last->address() <= address && address < last->end()) {
      return last;
    }
  }
  for (const char* before = page - kPageBytes;; before -= kPageBytes) {
    if (packed_page(before) == nullptr) return nullptr;
    PageBlock* block = last_start(pages_.find(before)->starts, BlockStartMap::kSteps - 1);
    if (block == nullptr) continue;
    if (address >= block->end()) return nullptr;
    shared->covering = block->id;
    return block;
  }
}

PageBlock* PageDirectory::run_at(const void* address) const {
  PageBlock* block = blocks_.find(pages_.find(address)->starts.at(BlockStartMap::step_of(address)));
  return block != nullptr && block->address() == address ? block : nullptr;
}

PageBlock* PageDirectory::run_with(const void* address) const {
  const BlockStartMap& starts = pages_.find(address)->starts;
  const std::size_t step = BlockStartMap::step_of(address);
  PageBlock* block = last_start(starts, step);
  // The block may start later in the same step.
  if (block != nullptr && block->address() > address) {
    block = step == 0 ? nullptr : last_start(starts, step - 1);
  }
  if (block != nullptr) return address < block->end() ? block : nullptr;
  return reaching_into(packed_page(address), page_of(static_cast<const char*>(address)), address);
}

Block* PageDirectory::find(const void* address) const {
  // Usually the address is the start of a block.
  Block* block = block_at(address);
  if (block == nullptr) {
    Page* page = page_at(address);
    if (page == nullptr) return nullptr;
    if (kind_of(page) == PageKind::kPageGranular) return record_of<PageBlock>(page);
    if (kind_of(page) == PageKind::kMixed) block = record_of<SmallPage>(page)->with(address);
    if (block == nullptr) block = run_with(address);
  }
  return block != nullptr && block->now() == BlockState::kArena ? nullptr : block;
}

void PageDirectory::each_block(
    const Span& span, const std::function<void(const Block&)>& visit,
    const std::function<void(const PageBlock& run)>& visit_small_run) const {
  // Skips free pages, which contain no blocks and often are nearly all pages of the span.
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
    if (kind_of(page) == PageKind::kPageGranular) {
      const auto* block = record_of<PageBlock>(page);
      if (block->address() == at_page) visit(*block);
      continue;
    }
    entry->starts.each(
        [&](std::uint32_t id) {
          const PageBlock& run = *blocks_.at(id);
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

// ---- pages

void PageDirectory::add_packed(const PageBlock& block, const PackedPage& page) {
  char* base = block.address();
  const std::size_t size_bytes = block.size_bytes();
  std::size_t done_bytes = 0;
  try {
    pages_.each(base, size_bytes, [&](PageEntry& entry) {
      PackedPage* record = packed_pages_.make(page);
      entry.starts.clear();
      entry.page.store(tagged(record, PageKind::kPacked), std::memory_order_release);
      done_bytes += kPageBytes;
    });
    add_start(block);
  } catch (const std::bad_alloc&) {
    remove_packed(base, done_bytes);
    throw;
  }
}

void PageDirectory::remove_packed(char* address, std::size_t size_bytes) {
  for (char* page = address; page < address + size_bytes; page += kPageBytes) {
    packed_pages_.drop(packed_page(page));
  }
  set(address, size_bytes, nullptr);
}

// ---- small objects

void PageDirectory::begin_small_run(PageBlock* run) {
  Page* page = page_at(run->address());
  if (kind_of(page) == PageKind::kPacked) {
    SmallPage* small = small_pages_.make(record_of<PackedPage>(page));
    set(page_of(run->address()), kPageBytes, tagged(small, PageKind::kMixed));
  }
  ++small_page(run->address()).runs;
  run->set(BlockState::kArena);
}

PageBlock* PageDirectory::end_small_run(char* base) {
  SmallPage& small = small_page(base);
  PageBlock* run = run_at(base);
  small.each(*run, [](const Block&) {
    // Invariant 10.
    require_invariant(false, "an arena gives back live small objects");
  });
  run->set(BlockState::kReleasing);
  if (--small.runs == 0) {
    set(page_of(base), kPageBytes, tagged(small.shared, PageKind::kPacked));
    small_pages_.drop(&small);
  }
  return run;
}

Block* PageDirectory::add_small(char* address, std::size_t size_bytes) {
  SmallPage& page = small_page(address);
  return page.add(address, size_bytes, page.shared->owning_pool);
}

void PageDirectory::remove_small(Block* block) {
  small_page(block->address()).remove(block);
}

std::size_t PageDirectory::bytes() const {
  return blocks_.bytes() + own_pages_.bytes() + packed_pages_.bytes() + small_pages_.bytes() +
         start_map_bytes_;
}

}  // namespace uvm
