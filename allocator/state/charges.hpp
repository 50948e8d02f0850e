// Decides which pool counts a live block (Note "Charges"). Limits and figures count a block on the
// device that uses it. If several devices use the block, the block counts on the device to which it
// last moved. If no device uses the block, it counts on the host. So the two sides of a
// copy-on-write pair have one charge, as they share one set of pages. Moving a part of a block
// changes no charge. Small blocks keep their charge, because they share their pages with other
// blocks.
//
// Functions that take a LockedHeap move the block's pages from pool to pool at once. Their caller
// must then count the block itself with count(), without the lock.
#pragma once

#include <algorithm>
#include <vector>

#include "allocator/state/block_counts.hpp"
#include "allocator/state/heap_state.hpp"

namespace uvm {

class Charges {
 public:
  explicit Charges(BlockCounts& counts) : counts_(counts) {}
  Charges(const Charges&) = delete;
  Charges& operator=(const Charges&) = delete;

  // Returns the places where the live block is used.
  static PlaceSet places_of(const LockedHeap& heap, const Block& block);
  // Returns the pool that counts the live block.
  static PoolIndex pool_of(const LockedHeap& heap, const Block& block);
  // Makes the side state and the pools for a block that will be used at these places. Returns the
  // pools. Call make_room() for these pools, without the lock, before any charge. Throws
  // std::bad_alloc.
  static std::vector<PoolIndex> prepare(const LockedHeap& heap, Block* block, PlaceSet places);
  void make_room(const std::vector<PoolIndex>& pools) {
    for (const PoolIndex pool : pools) counts_.make_room(pool);
  }
  bool have_room(const std::vector<PoolIndex>& pools) const {
    return std::all_of(pools.begin(), pools.end(),
                       [&](PoolIndex pool) { return counts_.has_room(pool); });
  }

  // The result of moving a block's charge from one pool to another.
  struct Change {
    PoolIndex from = 0;
    PoolIndex to = 0;
    StreamKey from_key;
    StreamKey to_key;
  };
  // Sets the places where the live block is used. `newest` is the place that it last moved to. The
  // caller has called prepare() for these places.
  static Change set_places(const LockedHeap& heap, Block* block, PlaceSet places,
                           Place newest) noexcept;
  void count(Block& block, const Change& change) noexcept;

  // Ends the charge of a block that is about to be freed. Its owning pool counts its pages again.
  // Pass the result to count_freed().
  static Change end(const LockedHeap& heap, const Block& block) noexcept;
  void count_freed(const Block& block, const Change& change) noexcept {
    counts_.freed(block, change.from_key, change.from);
  }

 private:
  static PoolIndex pool_at(const LockedHeap& heap, const Block& block, Place place);

  BlockCounts& counts_;
};

}  // namespace uvm
