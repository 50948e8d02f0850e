// The part of BlockPools that checks all blocks (docs/internals/invariants.md).
#include "allocator/heap/heap_invariants.hpp"

#include <cstdlib>

#include "allocator/heap/block_pools.hpp"
#include "allocator/heap/page_fit.hpp"
#include "runtime/log.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

void require_invariant(bool holds, const char* what) {
  if (holds) return;
  detail::forget_ranks();
  log_line(LogLevel::kError, fmt::format("broken invariant: {}", what));
  std::abort();
}

void BlockPools::check_invariants(const std::vector<std::unique_ptr<Span>>& spans) const {
  std::size_t free_bytes = 0;
  std::vector<std::size_t> run_bytes(all().size());
  auto check_neighbour = [&](const PageBlock& run) {
    if (run.kind != BlockKind::kPacked) return;
    const PageBlock* after = runs_.next_packed(&run);
    if (after == nullptr) return;
    // Invariant 5.
    require_invariant(after->address() == run.end() && after->chain.previous == run.id,
                      "neighbours in a run do not meet");
  };
  auto check_small_run = [&](const PageBlock& run) {
    run_bytes[run.owning_pool] += run.size_bytes();
    // Invariant 9.
    require_invariant(
        run.kind == BlockKind::kPacked && page_of(run.address()) == page_of(run.end() - 1),
        "what an arena has leaves its page");
    check_neighbour(run);
  };
  for (const auto& span : spans) {
    auto check = [&](const Block& block) {
      // Invariant 1.
      require_invariant(
          address_of(block.address()) % kGranule == 0 && block.size_bytes() % kGranule == 0,
          "a block is not made of granules");
      // Invariant 2.
      require_invariant(
          block.address() >= span->base && block.end() <= span->base + span->size_bytes,
          "a block leaves its span");
      // Invariant 3.
      require_invariant(directory().find(block.address()) == &block &&
                            directory().block_at(block.address()) == &block,
                        "a block cannot be found by its start");
      require_invariant(directory().span_of(block) == span.get(), "a block does not know its span");
      if (block.now() == BlockState::kLive) {
        // Invariant 4.
        require_invariant(directory().find(block.end() - 1) == &block,
                          "a live block cannot be found by its last byte");
        require_invariant(block.real.references != 0, "a live block has no indirect record");
      }
      if (block.kind == BlockKind::kSmall) return;
      const auto& run = static_cast<const PageBlock&>(block);
      run_bytes[run.owning_pool] += run.size_bytes();
      check_neighbour(run);
      if (block.now() != BlockState::kFree) return;
      free_bytes += block.size_bytes();
      const PageBlock* after =
          run.kind == BlockKind::kPacked ? runs_.next_packed(&run) : runs_.next_granular(&run);
      // Invariant 6.
      require_invariant(!can_join(&run, after), "free neighbours are not joined");
    };
    directory().each_block(*span, check, check_small_run);
  }
  std::size_t indexed_bytes = 0;
  for (const auto& pool : all()) {
    indexed_bytes += pool->own.free_bytes() + pool->displaced_here.free_bytes();
    // Invariant 7.
    require_invariant(run_bytes[pool->index] == pool->run_bytes,
                      "a pool miscounts the bytes of its blocks");
    for (const PageBlock* block : pool->displaced_away) {
      // Invariant 8.
      require_invariant(block->now() == BlockState::kFree && block->owning_pool == pool->index &&
                            block->pool != pool->index,
                        "a displaced block is in its owning pool");
    }
  }
  // Invariant 7, for all pools together.
  require_invariant(free_bytes == indexed_bytes, "free blocks and the index differ");
}

}  // namespace uvm
