#include <uvmalloc/allocator/engine/mover.hpp>

namespace uvm {

// The record of a move, attached to the block. Returns nullptr if the block has the most possible.
MovedStorage* Mover::record_for(const LockedHeap& heap, Block* block, const MoveRequest& move) {
  heap.proves(state_);
  if (!move.held) {
    IndirectStorage* same = block->real.indirect;
    while (same != nullptr && (same->held() || same->location() != move.destination)) {
      same = same->next;
    }
    if (same != nullptr) {
      auto* moved = static_cast<MovedStorage*>(same);  // the block's own one is held
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
  if (!move.destination.is_device()) {
    // The producer counts as a user: it is waited for with the others, each once, now or when the
    // block is freed.
    if (!uses_.record_use(address, DeviceStream::named(move.stream_device, move.stream)))
      return nullptr;
    if (move.wait) uses_.wait_for_uses(address);
  }
  MovedStorage* record = nullptr;
  TraceTime at = 0;
  TraceBlock moved;
  HintPlan plan;
  int device = move.stream_device;
  DeviceStream producer;
  {
    const HeapGuard heap(state_);
    Block* block = heap->live_block(address);
    if (block == nullptr) return nullptr;
    // Allocations come first. After the record nothing fails: the block either stays as it is, or
    // has moved and the caller has the record.
    if (move.destination.is_device()) StreamUses::prepare_uses(heap, block, 1);
    record = record_for(heap, block, move);
    if (record == nullptr) return nullptr;
    block->plain = false;
    at = machine_.trace.now();
    const std::size_t requested_bytes = block->requested_bytes();
    const bool whole = move.size_bytes == 0 || move.size_bytes >= requested_bytes;
    // The block's own record outlives the others. After the free it has the place of the pages.
    if (whole) block->use.move_to(move.destination);
    moved.address = block->address();
    moved.requested_bytes = whole ? requested_bytes : move.size_bytes;
    if (move.destination.is_device()) {
      const DeviceStream stream = DeviceStream::named(move.destination.index, move.stream);
      BlockSideState& side_state = heap->pools.side_states().make(block);
      if (move.source.is_device()) {
        // The stream that used it there: of its last move, or of its allocation.
        const StreamKey& key = heap->pools.at(block->pool).key;
        producer = side_state.mover.exists() ? side_state.mover : key.device_stream();
        if (producer.device != move.source.index) producer = {};
      }
      // A move of a part does not change the stream of the block.
      if (whole) side_state.mover = stream;
      StreamUses::add_use(heap, block, stream);
    }
    if (move.destination.is_host()) {
      if (BlockSideState* side_state = heap->pools.side_states().find(block))
        side_state->left_host = false;
    }
    MoveStatistics& moves = heap->book.figures().moves;
    std::uint64_t& direction = !move.destination.is_device() ? moves.device_to_host
                               : move.source.is_device()     ? moves.device_to_device
                                                             : moves.host_to_device;
    ++direction;
    moves.bytes += moved.requested_bytes;
    bool whole_segments = whole && block->kind == BlockKind::kPageGranular;
    plan = heap->planner.plan_move(
        whole ? block->address() : address, whole ? block->size_bytes() : move.size_bytes,
        whole_segments ? heap->pools.directory().placement_of(*block) : nullptr, move.destination);
  }
  machine_.trace.moved(at, moved.address, moved.requested_bytes, move.source, move.destination,
                       move.stream);
  DeviceStream consumer;
  if (move.destination.is_device()) {
    consumer = DeviceStream::named(move.stream_device, move.stream);
  } else {
    // The pages must not leave before the stream has finished with them.
    if (!move.wait) producer = DeviceStream::named(move.stream_device, move.stream);
  }
  hints_.send(plan, device, producer, consumer);
  return record;
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
    plan =
        heap->planner.plan_move(reinterpret_cast<void*>(begin), end - begin, nullptr, destination);
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
  const HeapGuard heap(state_);
  RealStorage* real = record->real;
  if (real == nullptr) return nullptr;
  if (real->references == 1) return real->address;
  real->detach(record);
  drop_record(heap, record);
  return nullptr;
}

void Mover::drop_records(const LockedHeap& heap, Block* block) {
  while (IndirectStorage* record = block->real.indirect) {
    block->real.detach(record);
    if (record != &block->use) drop_record(heap, static_cast<MovedStorage*>(record));
  }
}

}  // namespace uvm
