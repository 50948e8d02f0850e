// Of CachingManagedAllocator: streams that go, threads that end, private pools.
#include <uvmalloc/allocator/caching_managed_allocator.hpp>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace uvm {

void CachingManagedAllocator::forget_stream(int device, StreamHandle stream) {
  book_.check_device(device);
  if (in_forked_child()) return;
  // While it can still be named.
  fenced_.record_deferred();
  const DeviceStream gone = DeviceStream::named(device, stream);
  const StreamKey key{Facade::kDevice, device, stream, 0, gone.thread};
  bool has_pools = false;
  {
    std::lock_guard lock(lock_);
    has_pools = pools_.has_pools_of(key);
  }
  std::vector<Fence> last_work;
  if (has_pools) stream_work_.record({gone}, &last_work);
  Returning back(*this);
  DeviceStream nameless;
  bool is_known = false;
  std::vector<PoolIndex> in_private_pools;
  try {
    ThreadCaches::Frozen frozen(caches_);
    std::lock_guard lock(lock_);
    for (PoolIndex first = 0; first < pools_.pools().size(); first += kPoolsPerStream) {
      const StreamKey& other = pools_.at(first).key;
      if (other.facade == Facade::kDevice && other.device_stream() == gone &&
          other.private_pool != 0) {
        in_private_pools.push_back(first);
      }
    }
    nameless = stream_work_.forget(gone);
    pools_.each_extras([&](BlockExtras& extras) {
      std::replace(extras.uses.begin(), extras.uses.end(), gone, nameless);
      if (extras.mover == gone) extras.mover = nameless;
    });
    if (auto pools = pools_.forget(key, nameless.thread)) {
      is_known = true;
      if (!last_work.empty()) {
        orphan(*pools, last_work.front());
        last_work.clear();
      }
      caches_.close(*pools, &back.blocks);
    }
  } catch (const std::bad_alloc&) {
    stream_work_.release(&last_work);
    throw;
  }
  stream_work_.release(&last_work);
  back.now();
  if (is_known || !in_private_pools.empty()) trace_.stream_gone(trace_.now(), device, stream);
  if (!in_private_pools.empty()) forget_in_private_pools(in_private_pools, nameless);
}

// What private pools have for a stream that is gone stays theirs, for the next one of its handle
// where the device can be waited for, else for nobody before it goes back to the driver.
void CachingManagedAllocator::forget_in_private_pools(const std::vector<PoolIndex>& streams,
                                                      const DeviceStream& nameless) {
  const bool is_over = !is_capturing() && stream_work_.wait_for_device(nameless.device);
  ThreadCaches::Frozen frozen(caches_);
  std::lock_guard lock(lock_);
  for (const PoolIndex first : streams) {
    Pool& pool = pools_.at(first);
    if (is_over) {
      pool.stream_is_over = true;
      continue;
    }
    StreamKey key = pool.key;
    key.thread = nameless.thread;
    pools_.rename(first, key);
    caches_.rename(first, key);
  }
}

// On a thread that ends: what its per-thread streams had is for the next thread's.
void CachingManagedAllocator::note_thread_end(const std::vector<PoolIndex>& streams) noexcept {
  std::lock_guard lock(lock_);
  for (PoolIndex first : streams) {
    const StreamKey& key = pools_.at(first).key;
    const bool is_own = key.thread != 0 && key.thread == this_thread_number();
    if (is_own && key.private_pool == 0) orphan(first, {});
  }
}

// With the lock.
void CachingManagedAllocator::orphan(PoolIndex first, std::optional<Fence> last_work) noexcept {
  Pool& pool = pools_.at(first);
  if (!pool.is_orphaned) ++orphaned_streams_;
  pool.is_orphaned = true;
  pool.last_work = last_work;
}

// Of a stream that has no pools yet: those of a stream that is gone, or, for a thread's own stream,
// of that of a thread that has ended. Its work starts after theirs. So a program that makes and
// destroys streams for ever has as many pools as it has streams at once.
void CachingManagedAllocator::take_over_pools(const StreamKey& key) {
  PoolIndex first = 0;
  std::optional<Fence> last_work;
  {
    std::lock_guard lock(lock_);
    if (orphaned_streams_ == 0 || pools_.has_pools_of(key)) return;
    const auto& pools = pools_.pools();
    const auto found = std::find_if(pools.begin(), pools.end(), [&](const auto& pool) {
      return pool->is_orphaned && pool->key.device == key.device &&
             (key.thread != 0 || pool->last_work.has_value());
    });
    if (found == pools.end()) return;
    Pool& pool = **found;
    first = pool.index;
    last_work = std::exchange(pool.last_work, std::nullopt);
    pool.is_orphaned = false;
    --orphaned_streams_;
  }
  const DeviceStream stream = key.device_stream();
  const bool is_ordered =
      !is_capturing() && (last_work ? stream_work_.order_after(stream, *last_work)
                                    : stream_work_.order_after_blocking_streams(stream));
  ThreadCaches::Frozen frozen(caches_);
  std::lock_guard lock(lock_);
  // Another thread may have asked for the same stream meanwhile.
  if (!is_ordered || pools_.has_pools_of(key)) return orphan(first, last_work);
  pools_.rename(first, key);
  if (last_work) stream_work_.release(*last_work);
  caches_.rename(first, key);
}

void CachingManagedAllocator::require_device() const {
  if (!in_forked_child()) return;
  throw std::runtime_error(
      "uvmalloc: a device cannot be used in a forked child; start the process with spawn or "
      "forkserver");
}

// The innermost scope that the stream's requests belong to; none: its `pool` is 0.
PrivatePools::Scope CachingManagedAllocator::private_scope_of(int device, StreamHandle stream) {
  std::vector<PrivatePools::Scope> scopes;
  {
    std::lock_guard lock(lock_);
    scopes = private_pools_.open_scopes(device);
  }
  // A filter may ask the driver.
  for (const PrivatePools::Scope& scope : scopes) {
    if ((*scope.routed)(stream)) return scope;
  }
  return {};
}

std::uint64_t CachingManagedAllocator::begin_private_pool(int device, std::uint64_t id,
                                                          StreamFilter routed, bool capturing) {
  require_device();
  std::lock_guard lock(lock_);
  return private_pools_.begin(device, id, std::move(routed), capturing);
}

void CachingManagedAllocator::retain_private_pool(int device, std::uint64_t id) {
  require_device();
  std::lock_guard lock(lock_);
  private_pools_.retain(device, id);
}

std::size_t CachingManagedAllocator::private_pool_users(int device, std::uint64_t id) const {
  std::lock_guard lock(lock_);
  return private_pools_.users(device, id);
}

bool CachingManagedAllocator::give_whole_pages(int device, std::uint64_t id) {
  if (in_forked_child()) return false;
  std::lock_guard lock(lock_);
  return private_pools_.give_whole_pages(device, id);
}

std::vector<CachingManagedAllocator::PrivateBlock> CachingManagedAllocator::private_blocks(
    int device, std::uint64_t id) const {
  auto& caches = const_cast<ThreadCaches&>(caches_);
  ThreadCaches::Frozen frozen(caches);
  std::vector<PrivateBlock> out;
  std::lock_guard lock(lock_);
  for (const auto& span : spans_.spans()) {
    pools_.each_block(*span, [&](const Block& block) {
      const StreamKey& key = pools_.at(block.pool).key;
      if (block.now() != BlockState::kLive || key.private_pool != id || key.device != device) {
        return;
      }
      out.push_back({block.address(), block.size_bytes(), block.requested_bytes()});
    });
  }
  std::sort(out.begin(), out.end(), [](const PrivateBlock& left, const PrivateBlock& right) {
    return left.address < right.address;
  });
  return out;
}

void CachingManagedAllocator::restore_private_pool(int device, std::uint64_t id,
                                                   const std::vector<PrivateBlock>& blocks) {
  require_device();
  if (is_capturing()) throw std::logic_error("a private pool cannot be restored during a capture");
  using Extent = std::pair<void*, std::size_t>;
  std::set<Extent> wanted;
  for (const PrivateBlock& block : blocks) wanted.emplace(block.address, block.size_bytes);
  std::set<Extent> kept;
  for (const PrivateBlock& block : private_blocks(device, id)) {
    if (wanted.contains({block.address, block.size_bytes})) {
      kept.emplace(block.address, block.size_bytes);
    } else {
      free(block.address);
    }
  }
  // What was just freed must be with the pools.
  reclaim_all();
  fenced_.drain_all();
  for (const PrivateBlock& block : blocks) {
    if (!kept.contains({block.address, block.size_bytes})) restore_block(device, id, block);
  }
}

void CachingManagedAllocator::restore_block(int device, std::uint64_t id,
                                            const PrivateBlock& wanted) {
  RunBlock* block = nullptr;
  StreamKey key;
  Request request{Facade::kDevice,    device, wanted.size_bytes, wanted.requested_bytes, nullptr,
                  PoolClass::kShared, 0};
  {
    std::lock_guard lock(lock_);
    const Block* there = pools_.find(wanted.address);
    const Pool* pool = there != nullptr ? &pools_.at(there->pool) : nullptr;
    if (pool != nullptr && pool->key.private_pool == id && pool->key.device == device) {
      block = pools_.take_at(static_cast<char*>(wanted.address), wanted.size_bytes);
    }
    if (block != nullptr) {
      key = pool->key;
      request.stream = key.stream;
      request.pool_class = pool->pool_class;
      request.pools = first_of(pool->index);
      occupy(request, block, block->home);
    }
  }
  if (block == nullptr) {
    throw std::invalid_argument(
        fmt::format("{} at {} cannot be had again: the memory is not private pool {}'s, or it is "
                    "in use",
                    format_size(wanted.size_bytes), wanted.address, id));
  }
  if (ThreadCache* cache = caches_.mine()) {
    const InsideCache inside(*cache);
    open_to_count(cache, key, request.pools);
  }
  count_allocation(request, *block, true);
}

bool CachingManagedAllocator::end_private_pool(int device, std::uint64_t id, std::uint64_t scope) {
  if (in_forked_child()) return false;
  {
    std::lock_guard lock(lock_);
    if (!private_pools_.end(device, id, scope)) return false;
  }
  fenced_.record_deferred();
  send_pending_hints();
  return true;
}

bool CachingManagedAllocator::release_private_pool(int device, std::uint64_t id) {
  if (in_forked_child()) return false;
  {
    std::lock_guard lock(lock_);
    if (!private_pools_.release(device, id)) return false;
  }
  fenced_.record_deferred();
  send_pending_hints();
  return true;
}

}  // namespace uvm
