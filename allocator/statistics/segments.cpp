#include "allocator/statistics/segments.hpp"

#include "allocator/heap/block_pools.hpp"
#include "allocator/spans/span_store.hpp"

namespace uvm {
namespace {

class SegmentList {
 public:
  SegmentList(const BlockPools& pools, const PoolOfBlock& charged)
      : pools_(pools), charged_(charged) {}

  // Each run of an arena's pages gets a separate segment.
  void add_small_run(const PageBlock& run) {
    begin(run.address(), run.size_bytes(), run.owning_pool, true);
  }

  void begin(char* base, std::size_t size_bytes, PoolIndex pool, bool is_of_small_objects) {
    const Pool& owning_pool = pools_.at(pool);
    pool_ = pool;
    segments_.push_back({base,
                         size_bytes,
                         owning_pool.key.facade,
                         owning_pool.key.device,
                         owning_pool.key.stream,
                         is_of_small_objects,
                         owning_pool.key.program_pool(),
                         {}});
    end_ = base;
  }

  void add(const Block& block) {
    const bool small = block.kind == BlockKind::kSmall;
    // A live block counts in the pool that it is charged to, any other block in its owning pool.
    const PoolIndex pool = block.now() == BlockState::kLive
                               ? charged_(block)
                               : pools_.directory().owning_pool_of(block);
    const bool goes_on = small || (block.kind == BlockKind::kPacked && block.address() == end_ &&
                                   pool == pool_ && !segments_.back().is_of_small_objects &&
                                   static_cast<const PageBlock&>(block).chain.previous != 0);
    if (!goes_on) begin(block.address(), 0, pool, false);
    SegmentDescription& segment = segments_.back();
    // A gap consists of free small objects, which belong to the arena.
    if (block.address() > end_) {
      segment.blocks.push_back(
          {static_cast<std::size_t>(block.address() - end_), 0, BlockState::kFree});
    }
    const bool in_use = block.now() != BlockState::kFree && block.now() != BlockState::kCached;
    segment.blocks.push_back(
        {block.size_bytes(), in_use ? block.requested_bytes() : 0, block.now()});
    end_ = block.end();
    if (!small) segment.size_bytes += block.size_bytes();
  }

  // Returns the segments. Bytes at the end of a segment that are in no block count as free.
  std::vector<SegmentDescription> take() {
    for (SegmentDescription& segment : segments_) {
      std::size_t bytes = 0;
      for (const auto& piece : segment.blocks) bytes += piece.size_bytes;
      if (bytes < segment.size_bytes) {
        segment.blocks.push_back({segment.size_bytes - bytes, 0, BlockState::kFree});
      }
    }
    return std::move(segments_);
  }

 private:
  const BlockPools& pools_;
  const PoolOfBlock& charged_;
  std::vector<SegmentDescription> segments_;
  PoolIndex pool_ = 0;         // the pool of the last segment
  const char* end_ = nullptr;  // the end of the last block
};

}  // namespace

std::vector<SegmentDescription> describe_segments(const SpanStore& spans, const BlockPools& pools,
                                                  const PoolOfBlock& charged) {
  SegmentList list(pools, charged);
  for (const auto& span : spans.spans()) {
    pools.directory().each_block(
        *span, [&](const Block& block) { list.add(block); },
        [&](const PageBlock& run) { list.add_small_run(run); });
  }
  return list.take();
}

}  // namespace uvm
