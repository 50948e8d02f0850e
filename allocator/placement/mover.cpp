#include "allocator/placement/mover.hpp"

#include "allocator/state/limits.hpp"

namespace uvm {

// Returns the record of a move, attached to the block, or nullptr if no more records are possible.
MovedStorage* Mover::record_for(const LockedHeap& heap, Block* block, const MoveRequest& move) {
  heap.proves(state_);
  if (!move.held) {
    IndirectStorage* same = block->real.indirect;
    while (same != nullptr && (same->held() || same->location() != move.destination)) {
      same = same->next;
    }
    if (same != nullptr) {
      auto* moved = static_cast<MovedStorage*>(same);  // not the block's own record
      moved->stream = move.stream;
      return moved;
    }
  }
  if (block->real.references == RealStorage::kMostReferences) return nullptr;
  MovedStorage* record = records_.make({});
  record->resize(block->requested_bytes());
  record->move_to(move.destination);
  record->stream = move.stream;
  record->set_held(move.held);
  record->real = &block->real;
  block->real.attach(record);
  return record;
}

void Mover::drop_record(const LockedHeap& heap, MovedStorage* record) {
  heap.proves(state_);
  record->real = nullptr;
  records_.drop(record);
}

MovedStorage* Mover::move(void* address, const MoveRequest& move) {
  machine_.check_device(move.stream_device);
  machine_.check_place(move.source);
  machine_.check_place(move.destination);
  if (machine_.in_forked_child()) return nullptr;
  // The producing stream counts as a user, so its work is waited for by this move or after the
  // free.
  const DeviceStream producer = DeviceStream::named(move.stream_device, move.stream);
  if (!move.destination.is_device() && move.wait) {
    if (!uses_.record_use(address, producer)) return nullptr;
    uses_.wait_for_uses(address);
  }
  Moved moved;
  const bool is_done = try_to_move(address, move, false, &moved);
  if (moved.block != nullptr && adds_producer(move))
    machine_.trace.used(moved.at, moved.traced.address, producer.device, producer.handle);
  if (!is_done) {
    prepare(address, move);
    try_to_move(address, move, true, &moved);
  }
  if (moved.record == nullptr) return nullptr;
  charges_.count(*moved.block, moved.charged);
  machine_.trace.moved(moved.at, moved.traced.address, moved.traced.requested_bytes, move.source,
                       move.destination, move.stream);
  DeviceStream consumer;
  if (move.destination.is_device()) {
    consumer = DeviceStream::named(move.stream_device, move.stream);
  } else if (!move.wait) {
    moved.producer = producer;  // the pages must not move before the stream has finished with them
  }
  hints_.send(moved.plan, move.stream_device, moved.producer, consumer);
  return moved.record;
}

// Moves the block under the state lock. Returns false if nothing has changed and prepare() must be
// called first. `*out` has no record if there is no live block, or no room for a record.
bool Mover::try_to_move(const void* address, const MoveRequest& move, bool is_prepared,
                        Moved* out) {
  const HeapGuard heap(state_);
  Block* block = heap->live_block(address);
  if (block == nullptr) return true;
  if (adds_producer(move) && !is_prepared)
    StreamUses::add_use(heap, block, DeviceStream::named(move.stream_device, move.stream));
  out->block = block;
  out->at = machine_.trace.now();
  out->traced.address = block->address();
  // Memory is allocated first, so that nothing fails after the record is made. So the block either
  // is unchanged, or has moved and the caller gets the record.
  const bool whole = moves_whole(*block, move);
  PlaceSet places = Charges::places_of(heap, *block);
  const bool is_charged = places.has(move.destination);
  // After a move from the host, the host may still read the block until note_left() or
  // note_places() says otherwise.
  if (whole && !move.keeps_source && move.source.is_device()) places.remove(move.source);
  if (whole || move.destination.is_host()) places.add(move.destination);
  const std::vector<PoolIndex> pools = Charges::prepare(heap, block, places);
  const bool is_ready = charges_.have_room(pools) && (is_charged || has_room(heap, *block, move));
  if (!is_prepared && !is_ready) return false;
  if (move.destination.is_device()) StreamUses::prepare_uses(heap, block, 1);
  out->record = record_for(heap, block, move);
  if (out->record == nullptr) return true;
  block->has_no_side_state = false;
  const std::size_t requested_bytes = block->requested_bytes();
  // The block's own record outlives the other records, and tells after the free where the pages
  // are.
  out->charged =
      Charges::set_places(heap, block, places, whole ? move.destination : block->use.location());
  out->traced.requested_bytes = whole ? requested_bytes : move.size_bytes;
  if (move.destination.is_device()) {
    const DeviceStream stream = DeviceStream::named(move.destination.index, move.stream);
    BlockSideState& side_state = heap->pools.side_states().make(block);
    if (move.source.is_device()) {
      // The stream that used the block on the source is the stream of the block's last move, or
      // else of its allocation.
      const StreamKey& key = heap->pools.at(block->pool).key;
      out->producer = side_state.mover.exists() ? side_state.mover : key.device_stream();
      if (out->producer.device != move.source.index) out->producer = {};
    }
    // A move of a part does not change the stream of the block.
    if (whole) side_state.mover = stream;
    StreamUses::add_use(heap, block, stream);
  }
  MoveStatistics& moves = heap->statistics.figures().moves;
  std::uint64_t& direction = !move.destination.is_device() ? moves.device_to_host
                             : move.source.is_device()     ? moves.device_to_device
                                                           : moves.host_to_device;
  ++direction;
  moves.bytes += out->traced.requested_bytes;
  const bool whole_segments = whole && block->kind == BlockKind::kPageGranular;
  out->plan = heap->planner.plan_move(
      whole ? block->address() : const_cast<void*>(address),
      whole ? block->size_bytes() : move.size_bytes,
      whole_segments ? heap->pools.directory().placement_of(*block) : nullptr, move.destination);
  return true;
}

// Returns whether the destination's limit allows the block.
bool Mover::has_room(const LockedHeap& heap, const Block& block, const MoveRequest& move) {
  return !move.destination.is_device() || block.kind == BlockKind::kSmall ||
         !moves_whole(block, move) ||
         limits::check(heap, {Facade::kDevice, move.destination.index}, 0, block.size_bytes()).ok();
}

// Makes room for counters of pools that will be charged, and for the block in the device's limit.
void Mover::prepare(const void* address, const MoveRequest& move) {
  Request request{};
  std::vector<PoolIndex> pools;
  {
    const HeapGuard heap(state_);
    Block* block = heap->live_block(address);
    if (block == nullptr) return;
    PlaceSet places = Charges::places_of(heap, *block);
    const bool is_charged = places.has(move.destination);
    places.add(move.destination);
    pools = Charges::prepare(heap, block, places);
    if (!is_charged && !has_room(heap, *block, move)) {
      const StreamKey key{Facade::kDevice, move.destination.index, nullptr};
      request = Request::make(key.facade, key.device, block->size_bytes(), nullptr,
                              heap->pools.table().open(key));
      request.requested_bytes = block->requested_bytes();
    }
  }
  charges_.make_room(pools);
  if (request.size_bytes != 0) room_.make_room_on_device(request);
}

void Mover::note_left(const void* address, Place place) {
  if (machine_.in_forked_child()) return;
  PlaceSet places;
  {
    const HeapGuard heap(state_);
    const Block* block = heap->live_block(address);
    if (block == nullptr || block->has_no_side_state) return;
    places = Charges::places_of(heap, *block);
  }
  places.remove(place);
  note_places(address, places);
}

void Mover::note_place_again(const void* address, Place place) {
  Block* block = nullptr;
  Charges::Change charged;
  {
    const HeapGuard heap(state_);
    block = heap->live_block(address);
    // The block was used at that place before, so its side state and pools exist.
    if (block == nullptr || block->has_no_side_state || block->kind == BlockKind::kSmall) return;
    PlaceSet places = Charges::places_of(heap, *block);
    places.add(place);
    charged = Charges::set_places(heap, block, places, block->use.location());
  }
  charges_.count(*block, charged);
}

bool Mover::note_places(const void* address, PlaceSet places) {
  if (machine_.in_forked_child()) return false;
  Block* block = nullptr;
  Charges::Change charged;
  {
    const HeapGuard heap(state_);
    block = heap->live_block(address);
    // A block that never moved is used at one place only.
    if (block == nullptr || block->has_no_side_state || block->kind == BlockKind::kSmall)
      return false;
    const PlaceSet before = Charges::places_of(heap, *block);
    places.keep(before);
    if (places.empty() || places == before) return false;
    charged = Charges::set_places(heap, block, places, block->use.location());
  }
  charges_.count(*block, charged);
  return true;
}

bool Mover::prefetch(const void* address, std::size_t size_bytes, Place destination,
                     int stream_device, StreamHandle stream) {
  machine_.check_device(stream_device);
  machine_.check_place(destination);
  if (machine_.in_forked_child()) return false;
  HintPlan plan;
  {
    const HeapGuard heap(state_);
    const Block* block = heap->live_block(address);
    if (block == nullptr || size_bytes == 0 ||
        size_bytes > static_cast<std::size_t>(block->end() - static_cast<const char*>(address))) {
      return false;
    }
    const std::uintptr_t begin = address_of(address) & ~(kPageBytes - 1);
    const std::uintptr_t end = round_up(address_of(address) + size_bytes, kPageBytes);
    plan = heap->planner.plan_wanted_move(reinterpret_cast<void*>(begin), end - begin, destination);
  }
  const DeviceStream given = DeviceStream::named(stream_device, stream);
  const bool to_device = destination.is_device();
  hints_.send(plan, stream_device, to_device ? DeviceStream{} : given,
              to_device ? given : DeviceStream{});
  return true;
}

bool Mover::advise(const void* address, const WantedPlacement& wanted) {
  machine_.check_place(wanted.preferred);
  machine_.check_place(wanted.accessed_by);
  if (machine_.in_forked_child()) return false;
  HintPlan plan;
  int device = 0;
  {
    const HeapGuard heap(state_);
    const Block* block = heap->live_block(address);
    if (block == nullptr || block->kind == BlockKind::kSmall) return false;
    device = heap->pools.at(block->pool).key.device;
    const std::uintptr_t begin = round_up(address_of(block->address()), kPageBytes);
    const std::uintptr_t end = address_of(block->end()) & ~(kPageBytes - 1);
    if (begin >= end) return false;
    // Packed pages have only the advice of their span on record; this advice is not recorded.
    SegmentPlacement* placement = block->kind == BlockKind::kPageGranular
                                      ? heap->pools.directory().placement_of(*block)
                                      : nullptr;
    plan =
        heap->planner.plan_advice(reinterpret_cast<void*>(begin), end - begin, placement, wanted);
  }
  hints_.send(plan, device);
  return true;
}

void* Mover::detach(MovedStorage* record) noexcept {
  Block* block = nullptr;
  Charges::Change charged;
  {
    const HeapGuard heap(state_);
    RealStorage* real = record->real;
    if (real == nullptr) return nullptr;
    if (real->references == 1) return real->address;
    const Place place = record->location();
    real->detach(record);
    drop_record(heap, record);
    block = heap->live_block(real->address);
    if (block == nullptr) return nullptr;
    charged = end_use(heap, block, place);
  }
  charges_.count(*block, charged);
  return nullptr;
}

// Ends the block's use at a place after a record for that place was detached, unless another record
// is for the same place. The block counts as used at the place of its allocation until it is freed.
Charges::Change Mover::end_use(const LockedHeap& heap, Block* block, Place place) noexcept {
  const StreamKey& key = heap->pools.at(block->pool).key;
  PlaceSet places = Charges::places_of(heap, *block);
  bool is_used = place == place_of_use(key.facade, key.device) || !places.has(place);
  for (const IndirectStorage* other = block->real.indirect; other != nullptr; other = other->next) {
    is_used |= other != &block->use && other->location() == place;
  }
  places.remove(place);
  if (is_used || places.empty()) return {};
  return Charges::set_places(heap, block, places, block->use.location());
}

void Mover::drop_records(const LockedHeap& heap, Block* block) {
  while (IndirectStorage* record = block->real.indirect) {
    block->real.detach(record);
    if (record != &block->use) drop_record(heap, static_cast<MovedStorage*>(record));
  }
}

}  // namespace uvm
