// The slow paths: requests that find no block in the thread's cache or the stream's pool, and frees
// that the thread's cache refuses.
#include <exception>
#include <stdexcept>

#include <fmt/format.h>

#include "allocator/engine/engine.hpp"
#include "runtime/log.hpp"

namespace uvm {

// ---- allocation

void* Engine::allocate_slow(Facade facade, int device, std::size_t size_bytes, StreamHandle stream,
                            std::size_t alignment_bytes, std::uint64_t own_pool) {
  RequestShape shape{alignment_bytes, false, false};
  if (machine.in_forked_child()) {
    if (shape.is_aligned()) {
      throw std::runtime_error(fmt::format(
          "an alignment of {} bytes is not possible in a forked child", alignment_bytes));
    }
    return fork_guard.allocate_in_child(facade, size_bytes);
  }
  if (device < 0 || device >= machine.device_count()) {
    throw std::invalid_argument(
        fmt::format("device {} does not exist; there are {}", device, machine.device_count()));
  }
  if (size_bytes == 0) return nullptr;
  if (!is_stream_ordered(facade)) stream = nullptr;
  if (size_bytes > kLargestRequest - shape.room_bytes(facade)) {
    const Request too_large{facade, device, 0, size_bytes, stream, PoolClass::kPacked, {}};
    out_of_memory.raise(too_large, Refusal::of_driver({RuntimeError::kOutOfMemory, 0,
                                                       "larger than a block can be", "allocate"}));
  }
  StreamKey key{facade, device, stream, 0, DeviceStream::thread_of(stream)};
  if (facade == Facade::kDevice && state.has_open_private_pools()) {
    const PrivatePoolTable::Scope scope = private_memory.scope_of(device, stream);
    key.private_pool = scope.pool;
    shape.whole_pages = scope.whole_pages;
  }
  if (key.private_pool == 0) key.private_pool = own_pool;
  shape.is_private = key.private_pool != 0;
  Request request = Request::make(facade, device, size_bytes, stream, {}, shape);
  const StreamPools::Opened opened = stream_pools.open(key, request.pool_class);
  request.pools = opened.pools;
  if (opened.is_new && facade == Facade::kDevice) {
    machine.trace.stream_seen(machine.trace.now(), device, stream);
  }
  if (ThreadCache* cache = caches.local()) {
    const bool may_be_cached = !shape.is_private && !shape.is_aligned();
    void* address = allocate_from_cache(cache, request, key, may_be_cached, opened.may_cache_large);
    if (address != nullptr) return address;
  }
  return request.size_bytes <= kSmallBytes ? allocate_small(request) : allocate_pages(request, {});
}

// Makes the stream a recent stream of the thread's cache, and takes a block from that cache.
// Returns nullptr if the cache has no block.
void* Engine::allocate_from_cache(ThreadCache* cache, const Request& request, const StreamKey& key,
                                  bool may_be_cached, bool may_cache_large) {
  ThreadCache::Outcome outcome{};
  StreamIndex pools{};
  bool goes_on = true;
  Block* block = nullptr;
  {
    BlockReturner::Later large_blocks(returner_);
    const CacheOwnerGuard inside(*cache);
    counts_.open(cache, key, request.pools, true);
    StreamCache* of = cache->stream(request.pools);
    if (may_cache_large) of->set_may_cache_large(true);
    if (may_be_cached) {
      block = cache->allocate(request.facade, request.device, request.stream,
                              request.requested_bytes, &outcome, &pools);
    }
    if (block == nullptr && request.size_bytes >= kLargeBytes) {
      goes_on = of->flush_large(&large_blocks.blocks);
    }
  }
  if (!goes_on) large_.stop(request);
  if (block == nullptr) return nullptr;
  void* address = block->address();
  unpoison(address, block->size_bytes());
  machine.trace.allocated(machine.trace.now(), request.traced(address, block->size_bytes()));
  if (outcome == ThreadCache::Outcome::kDoneAtLimit) on_cache_limit(request.facade, request.device);
  return address;
}

void Engine::on_cache_limit(Facade facade, int device) noexcept {
  counts_.settle_peaks(facade, device);
  if (decay.enabled()) decay.decay_now();
}

void Engine::make_room_on_device(const Request& request) {
  with_room(request, [&](const LockedHeap& heap) {
    return limits::check(heap, {Facade::kDevice, request.device}, 0, request.size_bytes);
  });
}

void Engine::with_room(const Request& request, const Attempt& attempt) {
  Refusal refusal;
  auto succeeds = [&] {
    const HeapGuard heap(state);
    refusal = attempt(heap);
    return refusal.ok();
  };
  if (succeeds()) return;
  reclaimer.release_cached();
  PressureRounds callbacks = pressure_callbacks.rounds(request);
  while (!succeeds()) {
    if (!callbacks.next()) out_of_memory.raise(request, refusal);
    reclaimer.release_cached();
  }
}

void Engine::trim_large(ThreadCache* cache, const Request& request) noexcept {
  large_.trim(cache, request);
  try {
    reclaimer.release_surplus_spans(request);
  } catch (const std::bad_alloc&) {
    // The surplus spans are kept.
  }
}

void* Engine::allocate_pages(const Request& request, const BlockFinder::Taken& taken) {
  Demand demand(request, false);
  if (taken.block != nullptr) return finish_allocation(request, {taken.block, true});
  if (taken.searched == BlockFinder::Searched::kNothing) {
    fenced_.drain_some();
    decay.now_and_then();
  }
  demand.found = finder_.find(request, taken.searched);
  if (demand.found.block == nullptr && !escalation_.climb(&demand)) {
    out_of_memory.raise(request, demand.refusal);
  }
  return finish_allocation(request, demand.found);
}

void* Engine::finish_allocation(const Request& request, Found found) {
  void* address = nullptr;
  TraceTime at = 0;
  HintPlan plan;
  {
    const HeapGuard heap(state);
    if (request.aligned.to_bytes != 0) {
      found.block = heap->pools.trim_aligned(found.block, request.aligned.to_bytes,
                                             request.aligned.size_bytes);
    }
    address = mark_live(heap, request, found.block, found.block->owning_pool);
    at = machine.trace.now();
    // A captured stream cannot wait for a prefetch, so the first use populates the pages.
    if (found.populate != nullptr && !state.is_capturing()) {
      plan = heap->planner.plan_use(found.populate, found.populate_bytes,
                                    place_of_use(request.facade, request.device));
    }
  }
  machine.trace.allocated(at, request.traced(address, found.block->size_bytes()));
  counts_.allocated(request, *found.block, found.from_cache);
  if (!plan.empty()) hints.send(plan, request.device, {}, request.consumer());
  follow_placement();
  return address;
}

void* Engine::allocate_in(std::uint64_t own_pool, Facade facade, int device, std::size_t size_bytes,
                          StreamHandle stream) {
  return live.is_watching() ? allocate_watched(facade, device, size_bytes, stream, own_pool)
                            : allocate_slow(facade, device, size_bytes, stream, 0, own_pool);
}

void* Engine::allocate_watched(Facade facade, int device, std::size_t size_bytes,
                               StreamHandle stream, std::uint64_t own_pool) {
  void* address = allocate_slow(facade, device, size_bytes, stream, 0, own_pool);
  note_allocated(address, facade, device, size_bytes, stream);
  return address;
}

void Engine::note_allocated(void* address, Facade facade, int device, std::size_t size_bytes,
                            StreamHandle stream) {
  if (facade == Facade::kDevice) {
    try {
      live.check_thrashing(device, size_bytes);
    } catch (const OutOfMemoryError&) {
      free_slow(address, nullptr);
      throw;
    }
  }
  live.allocated(address, facade, device, size_bytes, stream);
}

void Engine::note_uses(int device, StreamHandle stream, std::span<const live::UseRange> ranges,
                       live::Launch launch) noexcept {
  if (live.is_watching() && !machine.in_forked_child() && !state.is_capturing()) {
    try {
      device_sharing.before_kernel(device, [&](int shared) { live.leave_device(shared, stream); });
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, "a kernel did not wait for the program's turn on the device: {}",
          error.what());
    }
  }
  groups.note_uses(DeviceStream::named(device, stream), ranges);
  live.note_uses(device, stream, ranges, launch);
}

void Engine::follow_placement() {
  if (!state.has_placement_news() || machine.in_forked_child()) return;
  PlacementPlanner::PlacementEvents events;
  {
    const HeapGuard heap(state);
    events = heap->planner.take_events();
  }
  for (const int device : events.devices_to_measure) {
    MemoryFigures figures;
    // While moves are planned, the driver's figures mislead, because pages may be evicted.
    if (live.is_watching() || !machine.runtime.memory_figures(device, &figures).ok()) continue;
    const HeapGuard heap(state);
    heap->planner.set_free_bytes(device, figures.free_bytes);
  }
  live.begin(events.short_devices);
}

void* Engine::allocate_small(const Request& request) {
  fenced_.drain_some();
  decay.now_and_then();
  Demand demand(request, true);
  bool took_page = false;
  SmallAllocator::Refill refill;
  for (bool goes_on = true;;) {
    refill = small_.refill(request, demand.allowed_growth);
    took_page |= refill.took_page;
    if (refill.block != nullptr) break;
    if (refill.thread_is_exiting) {
      Request as_pages = request;
      as_pages.size_bytes = kSmallestPacked;
      return allocate_pages(as_pages, {});
    }
    if (!goes_on) out_of_memory.raise(request, demand.refusal);
    goes_on = escalation_.climb(&demand);
  }
  void* address = nullptr;
  TraceTime at = 0;
  bool has_pending_hints = false;
  {
    const HeapGuard heap(state);
    has_pending_hints = hints.has_pending(heap);
    address = mark_live(heap, request, refill.block,
                        heap->pools.directory().owning_pool_of(*refill.block));
    at = machine.trace.now();
  }
  machine.trace.allocated(at, request.traced(address, request.size_bytes));
  counts_.allocated(request, *refill.block, !took_page);
  if (has_pending_hints) hints.send_pending(request.consumer());
  return address;
}

// ---- free

FreeResult Engine::free_slow(void* address, Block* block) noexcept {
  if (address == nullptr) return FreeResult::kFreed;
  if (machine.in_forked_child()) return fork_guard.free_in_child(address);
  bool had_no_side_state = false;
  bool is_misuse = false;
  bool fence = false;
  GroupNumber group = kNoGroup;
  TraceTime at = 0;
  StreamKey key;
  Charges::Change charged;
  {
    const HeapGuard heap(state);
    // The block was looked up without the lock, and may have become a segment of an arena.
    if (block == nullptr || block->now() != BlockState::kLive)
      block = heap->pools.directory().find(address);
    if (block == nullptr && !heap->pools.directory().is_ours(address)) return FreeResult::kNotOurs;
    is_misuse =
        block == nullptr || block->now() != BlockState::kLive || block->address() != address;
    if (!is_misuse) {
      key = heap->pools.at(block->pool).key;
      had_no_side_state = block->has_no_side_state;
      if (!had_no_side_state) {
        mover.drop_records(heap, block);
        group = groups.leave(heap, *block);
        try {
          const Pool& target = heap->pools.at(fenced_.pool_for(heap, *block));
          fence = fenced_.needs_fence(heap, *block, target);
        } catch (const std::bad_alloc&) {
          fence = true;  // the block's pools could not be made; the same may fail again below
        }
      }
      charged = Charges::end(heap, *block);
      at = machine.trace.now();
      block->set(BlockState::kReleasing);
      poison(block->address(), block->size_bytes());
    }
  }
  if (is_misuse) return report_misuse(address);
  machine.trace.freed(at, {key.facade, key.device, address, block->requested_bytes(),
                           block->size_bytes(), key.stream});
  charges_.count_freed(*block, charged);
  if (group != kNoGroup) groups.note_freed(group, *block);
  if (!fence && !had_no_side_state) {
    const HeapGuard heap(state);
    try {
      block->pool = fenced_.pool_for(heap, *block);
      heap->pools.side_states().drop(block);
    } catch (const std::bad_alloc&) {
      fence = true;  // the block's pools could not be made
    }
  }
  if (fence && fenced_.add(block)) return FreeResult::kFreed;
  returner_.give_back_plain(block);
  return FreeResult::kFreed;
}

// Logs the free of an address in the allocator's memory that is not the start of a live block.
FreeResult Engine::report_misuse(const void* address) const noexcept {
  void* base = nullptr;
  std::size_t size_bytes = 0;
  Facade facade = Facade::kHost;
  bool is_live = false;
  {
    const HeapGuard heap(state);
    // The block found may start before `address`: free blocks are joined with free neighbours.
    if (const Block* block = heap->pools.directory().find(address)) {
      base = block->address();
      size_bytes = block->size_bytes();
      facade = heap->pools.at(block->pool).key.facade;
      is_live = block->now() == BlockState::kLive && base != address;
    }
  }
  if (base == nullptr) {
    log(LogLevel::kError,
        "free({}): the memory was freed before and belongs to no block now; nothing was freed",
        address);
    return FreeResult::kDouble;
  }
  try {
    log(LogLevel::kError, "free({}): {} of a block of {} at {}, {} memory; nothing was freed",
        address, is_live ? "not the start" : "a second free", format_size(size_bytes), base,
        to_string(facade));
  } catch (const std::bad_alloc&) {
    log(LogLevel::kError, "free({}): {} of a block; nothing was freed", address,
        is_live ? "not the start" : "a second free");
  }
  return is_live ? FreeResult::kInterior : FreeResult::kDouble;
}

}  // namespace uvm
