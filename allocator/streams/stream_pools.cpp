#include "allocator/streams/stream_pools.hpp"

#include <algorithm>
#include <utility>

namespace uvm {

bool StreamPools::has_pools_of(const StreamKey& key) const {
  const HeapGuard heap(state_);
  return heap->pools.table().contains(key);
}

std::vector<StreamIndex> StreamPools::private_pools_of(const LockedHeap& heap,
                                                       const DeviceStream& stream) {
  std::vector<StreamIndex> found;
  for (StreamIndex pools{}; pools < heap->pools.table().streams_end(); ++pools) {
    const StreamKey& key = heap->pools.at(pools).key;
    if (key.facade == Facade::kDevice && key.private_pool != 0 && key.device_stream() == stream) {
      found.push_back(pools);
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
  std::vector<StreamIndex> in_private_pools;
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
void StreamPools::retire_in_private_pools(const std::vector<StreamIndex>& streams,
                                          const DeviceStream& retired,
                                          const DeviceStream& stand_in) {
  const bool is_over =
      !state_.is_capturing() && machine_.stream_work.wait_for_device(stand_in.device);
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  for (const StreamIndex pools : streams) {
    Pool& pool = heap->pools.at(pools);
    // While no lock was held, the private pool may have been released and its index reused.
    if (pool.key.private_pool == 0 || pool.key.device_stream() != retired) continue;
    if (is_over) {
      pool.stream_is_over = true;
      continue;
    }
    StreamKey key = pool.key;
    key.thread = stand_in.thread;
    heap->pools.table().rename(pools, key);
    caches_.rename(pools, key);
  }
}

void StreamPools::note_thread_end(const std::vector<StreamIndex>& streams) noexcept {
  const HeapGuard heap(state_);
  for (StreamIndex pools : streams) {
    const StreamKey& key = heap->pools.at(pools).key;
    const bool is_own = key.thread != 0 && key.thread == this_thread_number();
    if (is_own && key.private_pool == 0) orphan(heap, pools, {});
  }
}

void StreamPools::orphan(const LockedHeap& heap, StreamIndex pools,
                         std::optional<Fence> last_work) noexcept {
  Pool& pool = heap->pools.at(pools);
  if (!pool.is_orphaned) ++heap->orphaned_streams;
  pool.is_orphaned = true;
  pool.last_work = last_work;
}

void StreamPools::adopt(const StreamKey& key) {
  StreamIndex index{};
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
    index = stream_of(pool.index);
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
  if (!is_ordered || heap->pools.table().contains(key)) return orphan(heap, index, last_work);
  heap->pools.table().rename(index, key);
  if (last_work) machine_.stream_work.release(*last_work);
  caches_.rename(index, key);
}

bool StreamPools::is_released(const LockedHeap& heap, StreamIndex pools) {
  const Pool& packed = heap->pools.at(pools);
  const bool is_private =
      packed.key.private_pool != 0 && packed.key.private_pool != StreamKey::kForgotten;
  return is_private && heap->may_release(packed) && packed.requests == 0 && packed.is_empty() &&
         heap->page_granular_pool(pools).is_empty();
}

// Returns the first stream from `pools` on whose pools are released, or nullopt if no more exist.
std::optional<StreamIndex> StreamPools::next_released(const LockedHeap& heap, StreamIndex pools) {
  for (; pools < heap->pools.table().streams_end(); ++pools) {
    if (is_released(heap, pools)) return pools;
  }
  return std::nullopt;
}

void StreamPools::give_back_released() noexcept {
  {
    const HeapGuard heap(state_);
    if (!next_released(heap, {})) return;
  }
  ThreadCaches::StopTheWorld stopped(caches_);
  const HeapGuard heap(state_);
  for (auto next = next_released(heap, {}); next; next = next_released(heap, *next)) {
    caches_.drop(*next);
    give_back(heap, *next);
  }
  heap->statistics.limit_ended_pools(
      [&](int device, std::uint64_t id) { return heap->private_pools.users(device, id) == 0; });
}

// If memory was requested on a stream only for private pools, the stream has no ordinary pools and
// gets these pools as its ordinary ones. Otherwise calls that apply to all streams of the device
// would not find the stream.
void StreamPools::give_back(const LockedHeap& heap, StreamIndex pools) noexcept {
  const Pool& pool = heap->pools.at(pools);
  StreamKey ordinary = pool.key;
  ordinary.private_pool = 0;
  const bool has_ended = pool.stream_is_over || ordinary.device_stream().is_gone();
  if (!has_ended && !heap->pools.table().contains(ordinary)) {
    heap->pools.table().rename(pools, ordinary);
    return;
  }
  heap->pools.table().give_back(pools,
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
    may_cache_large = heap->pools.at(pool_of(pools, pool_class)).may_cache_large();
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
