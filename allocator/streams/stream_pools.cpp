#include "allocator/streams/stream_pools.hpp"

#include <algorithm>
#include <utility>

namespace uvm {

bool StreamPools::has_pools_of(const StreamKey& key) const {
  const HeapGuard heap(state_);
  return heap->pools.table().contains(key);
}

std::vector<PoolIndex> StreamPools::private_pools_of(const LockedHeap& heap,
                                                     const DeviceStream& stream) {
  std::vector<PoolIndex> found;
  for (PoolIndex first = 0; first < heap->pools.all().size(); first += kPoolsPerStream) {
    const StreamKey& key = heap->pools.at(first).key;
    if (key.facade == Facade::kDevice && key.private_pool != 0 && key.device_stream() == stream) {
      found.push_back(first);
    }
  }
  return found;
}

std::vector<DeviceStream> StreamPools::streams_of(int device) const {
  std::vector<DeviceStream> found;
  const HeapGuard heap(state_);
  for (const auto& pool : heap->pools.all()) {
    const DeviceStream stream = pool->key.device_stream();
    const bool has_ended = stream.is_gone() || stream.device != device;
    if (pool->key.facade != Facade::kDevice || has_ended) continue;
    if (found.empty() || found.back() != stream) found.push_back(stream);
  }
  return found;
}

void StreamPools::retire_stream(int device, StreamHandle stream) {
  machine_.check_device(device);
  if (machine_.in_forked_child()) return;
  retire(DeviceStream::named(device, stream));
}

void StreamPools::retire(const DeviceStream& retired) {
  // Record deferred fences now, while the stream can still be named.
  fenced_.record_deferred();
  const StreamKey key{Facade::kDevice, retired.device, retired.handle, 0, retired.thread};
  std::vector<Fence> last_work;
  if (has_pools_of(key)) machine_.stream_work.record({retired}, &last_work);
  BlockReturner::Later back(returner_);
  DeviceStream stand_in;
  bool is_known = false;
  std::vector<PoolIndex> in_private_pools;
  try {
    ThreadCaches::StopTheWorld stopped(caches_);
    const HeapGuard heap(state_);
    in_private_pools = private_pools_of(heap, retired);
    stand_in = machine_.stream_work.forget(retired);
    heap->pools.side_states().each([&](BlockSideState& side_state) {
      std::replace(side_state.uses.begin(), side_state.uses.end(), retired, stand_in);
      if (side_state.mover == retired) side_state.mover = stand_in;
    });
    if (auto pools = heap->pools.table().forget(key, stand_in.thread)) {
      is_known = true;
      if (!last_work.empty()) {
        orphan(heap, *pools, last_work.front());
        last_work.clear();
      }
      caches_.close(*pools, &back.blocks);
    }
  } catch (const std::bad_alloc&) {
    machine_.stream_work.release(&last_work);
    throw;
  }
  machine_.stream_work.release(&last_work);
  back.now();
  if (is_known || !in_private_pools.empty())
    machine_.trace.stream_gone(machine_.trace.now(), retired.device, retired.handle);
  if (!in_private_pools.empty()) {
    retire_in_private_pools(in_private_pools, retired, stand_in);
  }
}

// Memory that a private pool cached for a retired stream stays in the pool. If the device can be
// waited for now, the next stream with the same handle may use the memory. Otherwise the memory
// stays unused until the private pool is released.
void StreamPools::retire_in_private_pools(const std::vector<PoolIndex>& streams,
                                          const DeviceStream& retired,
                                          const DeviceStream& stand_in) {
  const bool is_over =
      !state_.is_capturing() && machine_.stream_work.wait_for_device(stand_in.device);
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  for (const PoolIndex first : streams) {
    Pool& pool = heap->pools.at(first);
    // While no lock was held, the private pool may have been released and its index reused.
    if (pool.key.private_pool == 0 || pool.key.device_stream() != retired) continue;
    if (is_over) {
      pool.stream_is_over = true;
      continue;
    }
    StreamKey key = pool.key;
    key.thread = stand_in.thread;
    heap->pools.table().rename(first, key);
    caches_.rename(first, key);
  }
}

void StreamPools::note_thread_end(const std::vector<PoolIndex>& streams) noexcept {
  const HeapGuard heap(state_);
  for (PoolIndex first : streams) {
    const StreamKey& key = heap->pools.at(first).key;
    const bool is_own = key.thread != 0 && key.thread == this_thread_number();
    if (is_own && key.private_pool == 0) orphan(heap, first, {});
  }
}

void StreamPools::orphan(const LockedHeap& heap, PoolIndex first,
                         std::optional<Fence> last_work) noexcept {
  Pool& pool = heap->pools.at(first);
  if (!pool.is_orphaned) ++heap->orphaned_streams;
  pool.is_orphaned = true;
  pool.last_work = last_work;
}

void StreamPools::adopt(const StreamKey& key) {
  PoolIndex first = 0;
  std::optional<Fence> last_work;
  {
    const HeapGuard heap(state_);
    if (heap->orphaned_streams == 0 || heap->pools.table().contains(key)) return;
    const auto& pools = heap->pools.all();
    const auto found = std::find_if(pools.begin(), pools.end(), [&](const auto& pool) {
      return pool->is_orphaned && pool->key.device == key.device &&
             (key.thread != 0 || pool->last_work.has_value());
    });
    if (found == pools.end()) return;
    Pool& pool = **found;
    first = pool.index;
    last_work = std::exchange(pool.last_work, std::nullopt);
    pool.is_orphaned = false;
    --heap->orphaned_streams;
  }
  const DeviceStream stream = key.device_stream();
  const bool is_ordered = !state_.is_capturing() &&
                          (last_work ? machine_.stream_work.order_after(stream, *last_work)
                                     : machine_.stream_work.order_after_blocking_streams(stream));
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  // While no lock was held, another thread may have opened the stream.
  if (!is_ordered || heap->pools.table().contains(key)) return orphan(heap, first, last_work);
  heap->pools.table().rename(first, key);
  if (last_work) machine_.stream_work.release(*last_work);
  caches_.rename(first, key);
}

bool StreamPools::is_released(const LockedHeap& heap, PoolIndex first) {
  const Pool& packed = heap->pools.at(first);
  const bool is_private =
      packed.key.private_pool != 0 && packed.key.private_pool != StreamKey::kForgotten;
  return is_private && heap->may_release(packed) && packed.requests == 0 && packed.is_empty() &&
         heap->page_granular_pool(first).is_empty();
}

// Returns the first released pools from `first` on, or nullopt if no more exist.
std::optional<PoolIndex> StreamPools::next_released(const LockedHeap& heap, PoolIndex first) {
  for (; first < heap->pools.all().size(); first += kPoolsPerStream) {
    if (is_released(heap, first)) return first;
  }
  return std::nullopt;
}

void StreamPools::give_back_released() noexcept {
  {
    const HeapGuard heap(state_);
    if (!next_released(heap, 0)) return;
  }
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  for (auto first = next_released(heap, 0); first; first = next_released(heap, *first)) {
    caches_.drop(*first);
    give_back(heap, *first);
  }
  heap->book.limit_ended_pools(
      [&](int device, std::uint64_t id) { return heap->private_pools.users(device, id) == 0; });
}

// A stream without ordinary pools, because memory was requested on it only for private pools, gets
// these pools as its ordinary ones. Otherwise calls that apply to all streams of the device would
// not find the stream.
void StreamPools::give_back(const LockedHeap& heap, PoolIndex first) noexcept {
  const Pool& pool = heap->pools.at(first);
  StreamKey ordinary = pool.key;
  ordinary.private_pool = 0;
  const bool has_ended = pool.stream_is_over || ordinary.device_stream().is_gone();
  if (!has_ended && !heap->pools.table().contains(ordinary)) {
    heap->pools.table().rename(first, ordinary);
    return;
  }
  heap->pools.table().give_back(first,
                                machine_.stream_work.forget(pool.key.device_stream()).thread);
}

StreamPools::Opened::~Opened() {
  if (!is_counted_) return;
  const HeapGuard heap(state_);
  --heap->pools.at(pools).requests;
}

StreamPools::Opened::Opened(StreamPools& owner, const StreamKey& key, PoolClass pool_class)
    : Opened(owner.state_) {
  {
    const HeapGuard heap(state_);
    is_new = !heap->pools.table().contains(key);
    pools = heap->pools.table().open(key);
    may_cache_large = heap->pools.at(pools + static_cast<PoolIndex>(pool_class)).may_cache_large();
    is_counted_ = key.private_pool != 0;
    if (is_counted_) ++heap->pools.at(pools).requests;
  }
  owner.caches_.make_room(pools);
}

StreamPools::Opened StreamPools::open(const StreamKey& key, PoolClass pool_class) {
  if (key.facade == Facade::kDevice && key.private_pool == 0) adopt(key);
  return {*this, key, pool_class};
}

}  // namespace uvm
