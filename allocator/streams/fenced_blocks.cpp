#include "allocator/streams/fenced_blocks.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace uvm {

FencedBlocks::FencedBlocks(HeapState& state, StreamWork& work, ReturnsBlocks& returns)
    : state_(state), work_(work), returns_(returns) {}

void FencedBlocks::close(const LockedHeap& heap) {
  heap.proves(state_);
  heap->pools.side_states().each(
      [&](BlockSideState& side_state) { work_.release(&side_state.fences); });
  waiting_.each([&](const Fence& fence) { work_.release(fence); });
}

std::vector<DeviceStream> FencedBlocks::users_of(const LockedHeap& heap, const Block& block) const {
  std::vector<DeviceStream> users;
  if (const BlockSideState* side_state = heap->pools.side_states().find(&block))
    users = side_state->uses;
  const StreamKey& key = heap->pools.at(block.pool).key;
  if (key.facade == Facade::kDevice) users.push_back(key.device_stream());
  return users;
}

std::vector<DeviceStream> FencedBlocks::streams_to_wait_for(const LockedHeap& heap,
                                                            const Block& block,
                                                            const Pool& pool) const {
  std::vector<DeviceStream> streams = users_of(heap, block);
  if (pool.key.facade == Facade::kDevice) std::erase(streams, pool.key.device_stream());
  return streams;
}

PoolIndex FencedBlocks::pool_for(const LockedHeap& heap, const Block& block) {
  const PoolIndex owning_pool = heap->pools.directory().owning_pool_of(block);
  const StreamKey& key = heap->pools.at(owning_pool).key;
  const Place place = block.use.location();
  if (block.kind != BlockKind::kPageGranular || key.is_ordinary() ||
      place == place_of_use(key.facade, key.device))
    return owning_pool;
  StreamKey there{Facade::kHost, key.device, nullptr};
  if (place.is_device()) {
    // If the block never moved, the stream that it was allocated for uses it.
    const BlockSideState* side_state = heap->pools.side_states().find(&block);
    const bool moved = side_state != nullptr && side_state->mover.exists();
    DeviceStream stream =
        moved ? side_state->mover : heap->pools.at(block.pool).key.device_stream();
    // Requests cannot name a destroyed stream, but they may name the default stream.
    if (stream.is_gone()) stream = {place.index, nullptr, 0};
    there = {Facade::kDevice, place.index, stream.handle, 0, stream.thread};
  }
  const PoolIndex pool = pool_of(heap->pools.table().open(there), PoolClass::kPageGranular);
  heap->pools.prepare_for_displaced(pool);
  return pool;
}

bool FencedBlocks::needs_fence(const LockedHeap& heap, const Block& block, const Pool& pool) const {
  const bool has_stream = pool.key.facade == Facade::kDevice;
  auto is_another = [&](const DeviceStream& user) {
    return !has_stream || user != pool.key.device_stream();
  };
  const StreamKey& key = heap->pools.at(block.pool).key;
  if (key.facade == Facade::kDevice && is_another(key.device_stream())) return true;
  const BlockSideState* side_state = heap->pools.side_states().find(&block);
  if (side_state != nullptr &&
      std::any_of(side_state->uses.begin(), side_state->uses.end(), is_another)) {
    return true;
  }
  return has_stream && pool.index != heap->pools.directory().owning_pool_of(block);
}

bool FencedBlocks::add(Block* block) noexcept {
  try {
    return try_to_add(block);
  } catch (const std::bad_alloc&) {
    // Nothing has changed. The next drain tries again.
    const HeapGuard heap(state_);
    defer(heap, block);
    return true;
  }
}

bool FencedBlocks::try_to_add(Block* block) {
  PoolIndex target = 0;
  std::vector<DeviceStream> streams;
  bool wait = false;
  {
    const HeapGuard heap(state_);
    if (state_.is_capturing()) {
      // An event on a captured stream would become part of the graph. The block is deferred under
      // the lock, so that record_deferred() after the capture cannot miss it.
      defer(heap, block);
      return true;
    }
    target = pool_for(heap, *block);
    const Pool& pool = heap->pools.at(target);
    streams = streams_to_wait_for(heap, *block, pool);
    wait = !streams.empty();
    // The stream of a device pool may at once use a block that was displaced to this pool. The
    // owning pool may use the block only when that stream has finished.
    if (target != heap->pools.directory().owning_pool_of(*block) &&
        pool.key.facade == Facade::kDevice) {
      streams.push_back(pool.key.device_stream());
    }
  }
  std::vector<Fence> fences;
  const bool done = work_.record(streams, &fences);
  const HeapGuard heap(state_);
  if (!done) {
    work_.release(&fences);
    defer(heap, block);
    return true;
  }
  const std::size_t recorded = fences.size();
  const bool waits = wait && recorded != 0;
  try {
    if (waits) {
      waiting_.add(block, fences);
    } else if (recorded != 0) {
      heap->pools.side_states().make(block);
    }
  } catch (const std::bad_alloc&) {
    work_.release(&fences);
    throw;
  }
  if (target != heap->pools.directory().owning_pool_of(*block)) {
    static_cast<PageBlock*>(block)->own_pages->displaced_at = ++displaced_;
  }
  block->pool = target;
  heap->statistics.figures().fences += recorded;
  if (!waits && recorded != 0) {
    BlockSideState& side_state = *heap->pools.side_states().find(block);
    side_state = {};
    side_state.fences = std::move(fences);
  } else {
    heap->pools.side_states().drop(block);
  }
  if (waits) {
    block->set(BlockState::kFenced);
    heap->statistics.fence_begins(*block, heap->pools.at(block->pool));
  } else {
    heap->statistics.free_completed(*block, heap->pools.at(block->pool));
  }
  return waits;
}

// Stores a block without fences, because a stream is being captured or memory is short.
void FencedBlocks::defer(const LockedHeap& heap, Block* block) {
  heap.proves(state_);
  block->set(BlockState::kFenced);
  heap->statistics.fence_begins(*block, heap->pools.at(block->pool));
  deferred_.push(block);
  has_deferred_ = true;
}

void FencedBlocks::record_deferred() noexcept {
  BlockChain blocks;
  {
    const HeapGuard heap(state_);
    if (state_.is_capturing()) return;
    blocks.take(std::move(deferred_));
    has_deferred_ = false;
  }
  // If a block is deferred again, stop: memory is short, or an unknown capture is running.
  while (!blocks.empty() && !has_deferred_.load(std::memory_order_relaxed)) {
    Block* block = blocks.pop();
    {
      const HeapGuard heap(state_);
      heap->statistics.fence_ends(*block, heap->pools.at(block->pool));
      block->set(BlockState::kReleasing);
    }
    if (add(block)) continue;
    BlockChain done;
    done.push(block);
    returns_.give_back(std::move(done));
  }
  if (blocks.empty()) return;
  const HeapGuard heap(state_);
  deferred_.take(std::move(blocks));
  has_deferred_ = true;
}

bool FencedBlocks::has_more_streams() const {
  const HeapGuard heap(state_);
  return waiting_.streams() > policy::kStreamsPerDrain;
}

void FencedBlocks::drain(std::size_t most_streams, bool wait) {
  std::unique_lock one_at_a_time(mutex_, std::defer_lock);
  if (wait) {
    one_at_a_time.lock();
    std::vector<Fence> newest;
    {
      const HeapGuard heap(state_);
      newest = waiting_.newest();
    }
    for (const Fence& fence : newest) work_.wait_for(fence);
  } else if (!one_at_a_time.try_lock()) {
    return;
  }
  if (has_deferred_.load(std::memory_order_relaxed)) record_deferred();
  // No other thread removes fences. New fences are added behind those that are queried here.
  for (bool more = true; more;) {
    std::vector<Fence> oldest;
    {
      const HeapGuard heap(state_);
      oldest = waiting_.oldest(policy::kFencesPerStream, most_streams, last_drained_);
    }
    returns_.give_back(take_finished(oldest, wait, &more));
    if (!more && !oldest.empty()) last_drained_ = oldest.back().stream;
  }
}

bool FencedBlocks::wait_for_oldest() {
  const std::lock_guard one_at_a_time(mutex_);
  std::vector<Fence> oldest;
  {
    const HeapGuard heap(state_);
    oldest = waiting_.oldest(1, kAllStreams, last_drained_);
  }
  if (!std::all_of(oldest.begin(), oldest.end(),
                   [&](const Fence& fence) { return work_.wait_for(fence); })) {
    return false;
  }
  bool more = false;
  returns_.give_back(take_finished(oldest, true, &more));
  return !oldest.empty();
}

std::size_t FencedBlocks::waiting_bytes(const LockedHeap& heap, PoolIndex owning_pool) const {
  heap.proves(state_);
  std::size_t bytes = 0;
  waiting_.each_block([&](const Block& block) {
    if (heap->pools.directory().owning_pool_of(block) == owning_pool) bytes += block.size_bytes();
  });
  return bytes;
}

// Returns the blocks without pending fences. `*more`: a stream's next fences may be over too.
BlockChain FencedBlocks::take_finished(const std::vector<Fence>& oldest, bool wait, bool* more) {
  std::vector<Fence> over;
  *more = false;
  for (std::size_t i = 0; i < oldest.size();) {
    const DeviceStream stream = oldest[i].stream;
    std::size_t end = i;
    while (end < oldest.size() && oldest[end].stream == stream) ++end;
    const bool may_have_more = end - i == policy::kFencesPerStream;
    for (; i < end; ++i) {
      // With `wait`, the stream was waited for. If the fence is pending nevertheless, it belongs to
      // an earlier stream with the same handle.
      if (!work_.is_over(oldest[i]) && !(wait && work_.wait_for(oldest[i]))) break;
      over.push_back(oldest[i]);
    }
    *more |= i == end && may_have_more;
    i = end;
  }
  BlockChain finished;
  const HeapGuard heap(state_);
  for (const Fence& fence : over) {
    work_.release(fence);
    Block* block = waiting_.take_oldest(fence.stream);
    if (block == nullptr) continue;
    const Pool& pool = heap->pools.at(block->pool);
    heap->statistics.fence_ends(*block, pool);
    heap->statistics.free_completed(*block, pool);
    block->set(BlockState::kReleasing);
    finished.push(block);
  }
  return finished;
}

std::vector<Fence> FencedBlocks::fences_of(const LockedHeap& heap, PageBlock* block) const {
  const BlockSideState* side_state = heap->pools.side_states().find(block);
  if (side_state == nullptr) return {};
  try {
    return side_state->fences;
  } catch (const std::bad_alloc&) {
    heap->pools.put(block, heap->pools.at(block->pool));
    throw;
  }
}

void FencedBlocks::drop_fences(const LockedHeap& heap, PageBlock* block) {
  BlockSideState* side_state = heap->pools.side_states().find(block);
  if (side_state == nullptr) return;
  work_.release(&side_state->fences);
  heap->pools.side_states().drop(block);
}

}  // namespace uvm
