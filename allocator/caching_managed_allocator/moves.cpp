// Of CachingManagedAllocator: who uses blocks, where, and how they move.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace uvm {

// With the lock: room in the block's record for so many uses more, so that add_use() takes no
// memory.
void CachingManagedAllocator::prepare_uses(Block* block, std::size_t count) {
  std::vector<DeviceStream>& uses = pools_.make_extras(block).uses;
  const std::size_t wanted = uses.size() + count;
  if (uses.capacity() < wanted) uses.reserve(std::max(wanted, 2 * uses.size()));
}

// With the lock.
void CachingManagedAllocator::add_use(Block* block, DeviceStream use) {
  const StreamKey& key = pools_.at(block->pool).key;
  if (key.facade == Facade::kDevice && use == key.device_stream()) return;
  std::vector<DeviceStream>& uses = pools_.make_extras(block).uses;
  if (std::find(uses.begin(), uses.end(), use) == uses.end()) uses.push_back(use);
}

bool CachingManagedAllocator::record_use(const void* address, int device, StreamHandle stream) {
  return record_use(address, DeviceStream::named(device, stream));
}

bool CachingManagedAllocator::record_use(const void* address, const DeviceStream& stream) {
  book_.check_device(stream.device);
  if (in_forked_child()) return false;
  std::unique_lock lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block)) return false;
  add_use(block, stream);
  const TraceTime at = trace_.now();
  const void* base = block->address();
  lock.unlock();
  trace_.used(at, base, stream.device, stream.handle);
  return true;
}

bool CachingManagedAllocator::record_use_of_all(const void* address, int device) {
  book_.check_device(device);
  if (in_forked_child()) return false;
  std::lock_guard lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block)) return false;
  // All or, without memory, none.
  prepare_uses(block, pools_.pools().size() / kPoolsPerStream);
  for (PoolIndex first = 0; first < pools_.pools().size(); first += kPoolsPerStream) {
    const Pool& pool = pools_.at(first);
    if (pool.key.facade != Facade::kDevice || pool.key.device != device || pool.stream_is_over) {
      continue;
    }
    const DeviceStream stream = pool.key.device_stream();
    if (!stream.is_gone() || !stream_work_.is_over(stream)) add_use(block, stream);
  }
  return true;
}

std::vector<DeviceStream> CachingManagedAllocator::uses_of(const void* address) const {
  if (in_forked_child()) return {};
  std::lock_guard lock(lock_);
  const Block* block = pools_.find(address);
  return is_block_live(block) ? fenced_.users_of(*block) : std::vector<DeviceStream>();
}

bool CachingManagedAllocator::mark_exported(const void* address) {
  if (in_forked_child()) return false;
  std::lock_guard lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block)) return false;
  block->exported = true;
  block->plain = false;
  return true;
}

void CachingManagedAllocator::mark_live_exported() {
  if (in_forked_child()) return;
  ThreadCaches::Frozen frozen(caches_);
  std::lock_guard lock(lock_);
  for (const auto& span : spans_.spans()) {
    pools_.each_block(*span, [&](const Block& block) {
      // Small ones are never shared.
      if (block.kind == BlockKind::kSmall || block.now() != BlockState::kLive) return;
      Block* live = pools_.block_at(block.address());
      live->exported = true;
      live->plain = false;
    });
  }
}

void CachingManagedAllocator::set_pinned(const void* address, bool pinned) {
  std::lock_guard lock(lock_);
  Block* block = pools_.find(address);
  if (!is_block_live(block)) return;
  pools_.make_extras(block).pinned = pinned;
}

void CachingManagedAllocator::wait_for_uses(const void* address) {
  for (const DeviceStream& user : uses_of(address)) {
    const RuntimeStatus status = stream_work_.wait_for(user);
    if (status.ok()) continue;
    throw std::runtime_error(
        fmt::format("uvmalloc: the work of a stream of device {} on {} cannot be waited for: {}",
                    user.device, address, status.text()));
  }
}

// With the lock: the record of a move, attached to the block; nullptr: the block has as many as it
// can have.
MovedStorage* CachingManagedAllocator::record_for(Block* block, const Move& move) {
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

// With the lock: a detached record waits for the next move.
void CachingManagedAllocator::drop_record(MovedStorage* record) {
  record->real = nullptr;
  records_.drop(record);
}

void CachingManagedAllocator::check_place(Place place) const {
  if (place.is_device()) book_.check_device(place.index);
}

MovedStorage* CachingManagedAllocator::move(void* address, const Move& move) {
  book_.check_device(move.stream_device);
  check_place(move.source);
  check_place(move.destination);
  if (in_forked_child()) return nullptr;
  if (!move.destination.is_device()) {
    // The producer counts as a user: it is waited for with the others, each once, now or when the
    // block is freed.
    if (!record_use(address, move.stream_device, move.stream)) return nullptr;
    if (move.wait) wait_for_uses(address);
  }
  MovedStorage* record = nullptr;
  TraceTime at = 0;
  TraceBlock moved;
  HintPlan plan;
  int device = move.stream_device;
  DeviceStream producer;
  {
    std::lock_guard lock(lock_);
    Block* block = pools_.find(address);
    if (!is_block_live(block)) return nullptr;
    // What needs memory comes first. From the record on nothing fails: the block either stays as it
    // is, or has moved and the caller has the record.
    if (move.destination.is_device()) prepare_uses(block, 1);
    record = record_for(block, move);
    if (record == nullptr) return nullptr;
    block->plain = false;
    at = trace_.now();
    const std::size_t requested_bytes = block->requested_bytes();
    const bool whole = move.size_bytes == 0 || move.size_bytes >= requested_bytes;
    // The block's own record outlives the others and tells, after the free, where the pages are.
    if (whole) block->use.move_to(move.destination);
    moved.address = block->address();
    moved.requested_bytes = whole ? requested_bytes : move.size_bytes;
    if (move.destination.is_device()) {
      const DeviceStream stream = DeviceStream::named(move.destination.index, move.stream);
      BlockExtras& extras = pools_.make_extras(block);
      if (move.source.is_device()) {
        // Who had it there: the stream that it was moved for, or the one that it was allocated for.
        const StreamKey& key = pools_.at(block->pool).key;
        producer = extras.mover.exists() ? extras.mover : key.device_stream();
        if (producer.device != move.source.index) producer = {};
      }
      // A part does not take the rest along.
      if (whole) extras.mover = stream;
      add_use(block, stream);
    }
    if (move.destination.is_host()) {
      if (BlockExtras* extras = pools_.extras(block)) extras->left_host = false;
    }
    MoveStatistics& moves = book_.figures().moves;
    std::uint64_t& direction = !move.destination.is_device() ? moves.device_to_host
                               : move.source.is_device()     ? moves.device_to_device
                                                             : moves.host_to_device;
    ++direction;
    moves.bytes += moved.requested_bytes;
    bool whole_segments = whole && block->kind == BlockKind::kWhole;
    plan = planner_.plan_move(
        whole ? block->address() : address, whole ? block->size_bytes() : move.size_bytes,
        whole_segments ? pools_.placement_of(*block) : nullptr, move.destination);
  }
  trace_.moved(at, moved.address, moved.requested_bytes, move.source, move.destination,
               move.stream);
  DeviceStream consumer;
  if (move.destination.is_device()) {
    consumer = DeviceStream::named(move.stream_device, move.stream);
  } else {
    // The pages must not leave before the stream is done with them.
    if (!move.wait) producer = DeviceStream::named(move.stream_device, move.stream);
  }
  send(plan, device, producer, consumer);
  return record;
}

bool CachingManagedAllocator::prefetch(const void* address, std::size_t size_bytes,
                                       Place destination, int stream_device, StreamHandle stream) {
  book_.check_device(stream_device);
  check_place(destination);
  if (in_forked_child()) return false;
  HintPlan plan;
  {
    std::lock_guard lock(lock_);
    const Block* block = pools_.find(address);
    if (!is_block_live(block) || size_bytes == 0 ||
        size_bytes > static_cast<std::size_t>(block->end() - static_cast<const char*>(address))) {
      return false;
    }
    const std::uintptr_t begin = address_of(address) & ~(kPageBytes - 1);
    const std::uintptr_t end = round_up(address_of(address) + size_bytes, kPageBytes);
    plan = planner_.plan_move(reinterpret_cast<void*>(begin), end - begin, nullptr, destination);
  }
  const DeviceStream given = DeviceStream::named(stream_device, stream);
  const bool to_device = destination.is_device();
  send(plan, stream_device, to_device ? DeviceStream{} : given, to_device ? given : DeviceStream{});
  return true;
}

bool CachingManagedAllocator::advise(const void* address, const WantedPlacement& wanted) {
  check_place(wanted.preferred);
  check_place(wanted.accessed_by);
  if (in_forked_child()) return false;
  HintPlan plan;
  int device = 0;
  {
    std::lock_guard lock(lock_);
    const Block* block = pools_.find(address);
    if (!is_block_live(block) || block->kind == BlockKind::kSmall) return false;
    device = pools_.at(block->pool).key.device;
    const std::uintptr_t begin = round_up(address_of(block->address()), kPageBytes);
    const std::uintptr_t end = address_of(block->end()) & ~(kPageBytes - 1);
    if (begin >= end) return false;
    // Pages that blocks share are advised with their span alone, and nothing is kept of this.
    SegmentPlacement* placement =
        block->kind == BlockKind::kWhole ? pools_.placement_of(*block) : nullptr;
    plan = planner_.plan_advice(reinterpret_cast<void*>(begin), end - begin, placement, wanted);
  }
  send(plan, device);
  return true;
}

std::map<Place, std::size_t> CachingManagedAllocator::residency(const void* address,
                                                                std::size_t size_bytes) const {
  std::map<Place, std::size_t> bytes;
  std::lock_guard lock(lock_);
  const Block* block = pools_.find(address);
  if (size_bytes == 0 || block == nullptr) return bytes;
  size_bytes = std::min(size_bytes,
                        static_cast<std::size_t>(block->end() - static_cast<const char*>(address)));
  std::vector<Place> places{Place::nowhere(), Place::host()};
  for (int device = 0; device < runtime_.device_count(); ++device) {
    places.push_back(Place::device(device));
  }
  for (Place place : places) {
    if (std::size_t at = ledger_.bytes_at(address, size_bytes, place); at != 0) bytes[place] = at;
  }
  return bytes;
}

void CachingManagedAllocator::release(MovedStorage* record) noexcept {
  if (in_forked_child()) return;
  void* address = nullptr;
  {
    std::lock_guard lock(lock_);
    RealStorage* real = record->real;
    if (real == nullptr) return;
    if (real->references > 1) {
      real->detach(record);
      drop_record(record);
      return;
    }
    address = real->address;
  }
  free(address);
}

}  // namespace uvm
