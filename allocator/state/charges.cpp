#include "allocator/state/charges.hpp"

namespace uvm {

PlaceSet Charges::places_of(const LockedHeap& heap, const Block& block) {
  const BlockSideState* side_state =
      block.has_no_side_state ? nullptr : heap->pools.side_states().find(&block);
  if (side_state != nullptr && side_state->used_at) return *side_state->used_at;
  const StreamKey& key = heap->pools.at(block.pool).key;
  return PlaceSet(place_of_use(key.facade, key.device));
}

// Returns the pool that counts a block used at `place`: the block's own pool, or a pool of the
// default stream.
PoolIndex Charges::pool_at(const LockedHeap& heap, const Block& block, Place place) {
  const StreamKey& own = heap->pools.at(block.pool).key;
  if (place_of_use(own.facade, own.device) == place) return block.pool;
  const StreamKey there = place.is_device() ? StreamKey{Facade::kDevice, place.index, nullptr}
                                            : StreamKey{Facade::kHost, own.device, nullptr};
  return uvm::pool_of(heap->pools.table().open(there), PoolClass::kPageGranular);
}

PoolIndex Charges::pool_of(const LockedHeap& heap, const Block& block) {
  if (block.has_no_side_state || block.kind == BlockKind::kSmall) return block.pool;
  const PlaceSet places = places_of(heap, block);
  Place charged = block.use.location();
  if (!charged.is_device()) {
    // A block that moved to a device and then to the host stays charged to that device.
    const BlockSideState* side_state = heap->pools.side_states().find(&block);
    if (side_state != nullptr && side_state->mover.exists())
      charged = Place::device(side_state->mover.device);
  }
  if (!charged.is_device() || !places.has(charged)) charged = places.first_device();
  return pool_at(heap, block, charged);
}

std::vector<PoolIndex> Charges::prepare(const LockedHeap& heap, Block* block, PlaceSet places) {
  std::vector<PoolIndex> pools;
  if (block->kind == BlockKind::kSmall) return pools;
  heap->pools.side_states().make(block);
  auto prepare_at = [&](Place place) {
    pools.push_back(pool_at(heap, *block, place));
    heap->statistics.prepare(heap->pools.at(pools.back()));
  };
  prepare_at(Place::host());
  places.each_device([&](int device) { prepare_at(Place::device(device)); });
  return pools;
}

Charges::Change Charges::set_places(const LockedHeap& heap, Block* block, PlaceSet places,
                                    Place newest) noexcept {
  const PoolIndex before = pool_of(heap, *block);
  if (BlockSideState* side_state = heap->pools.side_states().find(block))
    side_state->used_at = places;
  block->use.move_to(newest);
  const PoolIndex after = pool_of(heap, *block);
  if (after != before) heap->transfer_pages(*block, before, after);
  return {before, after, heap->pools.at(before).key, heap->pools.at(after).key};
}

void Charges::count(Block& block, const Change& change) noexcept {
  if (change.from == change.to) return;
  counts_.freed(block, change.from_key, change.from);
  counts_.allocated(change.to_key, change.to, block);
}

Charges::Change Charges::end(const LockedHeap& heap, const Block& block) noexcept {
  const PoolIndex pool = pool_of(heap, block);
  const PoolIndex owning_pool = heap->pools.directory().owning_pool_of(block);
  if (pool != owning_pool) heap->transfer_pages(block, pool, owning_pool);
  return {pool, owning_pool, heap->pools.at(pool).key, {}};
}

}  // namespace uvm
