// Of BlockPools: looking at all of it.
#include <uvmalloc/allocator/heap/heap_invariants.hpp>

#include <cstdlib>

#include <uvmalloc/allocator/heap/block_pools.hpp>
#include <uvmalloc/allocator/heap/page_fit.hpp>
#include <uvmalloc/runtime/log.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

void require_invariant(bool holds, const char* what) {
  if (holds) return;
  detail::forget_ranks();
  log_line(LogLevel::kError, fmt::format("broken invariant: {}", what));
  std::abort();
}

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
    require_invariant(after->address() == run.end() && after->shared.previous == run.id,
                      "neighbours in a run do not meet");
  };
  auto check_small_run = [&](const RunBlock& run) {
    run_bytes[run.home] += run.size_bytes();
    require_invariant(
        run.kind == BlockKind::kShared && page_of(run.address()) == page_of(run.end() - 1),
        "what an arena has leaves its page");
    check_neighbour(run);
  };
  for (const auto& span : spans) {
    auto check = [&](const Block& block) {
      require_invariant(
          address_of(block.address()) % kGranule == 0 && block.size_bytes() % kGranule == 0,
          "a block is not made of granules");
      require_invariant(
          block.address() >= span->base && block.end() <= span->base + span->size_bytes,
          "a block leaves its span");
      require_invariant(find(block.address()) == &block && block_at(block.address()) == &block,
                        "a block cannot be found by its start");
      require_invariant(span_of(block) == span.get(), "a block does not know its span");
      if (block.now() == BlockState::kLive) {
        require_invariant(find(block.end() - 1) == &block,
                          "a live block cannot be found by its last byte");
        require_invariant(block.real.references != 0, "a live block has no indirect record");
      }
      if (block.kind == BlockKind::kSmall) return;
      const auto& run = static_cast<const RunBlock&>(block);
      run_bytes[run.home] += run.size_bytes();
      check_neighbour(run);
      if (block.now() != BlockState::kFree) return;
      free_bytes += block.size_bytes();
      require_invariant(!can_join(&run, neighbour_after(&run)), "free neighbours are not joined");
    };
    each_block(*span, check, check_small_run);
  }
  std::size_t indexed_bytes = 0;
  for (const auto& pool : pools_) {
    indexed_bytes += pool->own.free_bytes() + pool->guests.free_bytes();
    require_invariant(run_bytes[pool->index] == pool->run_bytes,
                      "a pool miscounts the bytes of its blocks");
    for (const RunBlock* block : pool->away) {
      require_invariant(block->now() == BlockState::kFree && block->home == pool->index &&
                            block->pool != pool->index,
                        "a block that is away is at home");
    }
  }
  require_invariant(free_bytes == indexed_bytes, "free blocks and the index differ");
}

}  // namespace uvm
