#include "pytorch/plugin/device_pools.hpp"

#include <algorithm>
#include <thread>

#include <c10/cuda/CUDAStream.h>

#include "allocator/process/framework_bridge.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/memory_history.hpp"
#include "pytorch/plugin/operator_uses.hpp"
#include "pytorch/plugin/shared_storage.hpp"

namespace uvm::torch_plugin {
namespace {

struct Checkpoint final : native::AllocatorState {
  std::uint64_t pool = 0;
  std::vector<PrivateBlock> blocks;
};

StreamHandle handle(cudaStream_t stream) {
  return stream;
}

}  // namespace

bool DevicePools::is_own(const Key& key) const {
  {
    std::lock_guard lock(mutex_);
    if (foreign_.contains(key)) return false;
  }
  return !has_earlier_ ||
         allocator().private_pools().users(key.first, pool_number(key.second)) != 0 ||
         !is_earlier(key);
}

// Whether torch's own allocator has the pool. getPoolUseCount() throws for an unknown pool.
bool DevicePools::is_earlier(const Key& key) const {
  try {
    return fallback_->getPoolUseCount(key.first, key.second) != 0;
  } catch (const c10::Error&) {
    return false;
  }
}

// Call it with the mutex held.
std::optional<bool> DevicePools::close(const Key& key) {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const Scope& scope) { return scope.key == key; });
  if (found == open_.end()) return std::nullopt;
  const bool was_for_capture = found->is_for_capture;
  open_foreign_count_ -= static_cast<int>(found->is_foreign);
  open_.erase(found);
  return was_for_capture;
}

void DevicePools::begin_in_native(const Key& key, const Filter& filter) {
  fallback_->beginAllocateToPool(key.first, key.second, filter);
  std::lock_guard lock(mutex_);
  ++in_native_[key];
}

void DevicePools::end_in_native(const Key& key) {
  {
    std::lock_guard lock(mutex_);
    if (!in_native_.contains(key)) return;
  }
  fallback_->endAllocateToPool(key.first, key.second);
}

// Each begin counts as a user.
void DevicePools::release_in_native(const Key& key) {
  int users = 0;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = in_native_.extract(key)) users = found.mapped();
  }
  for (; users != 0; --users) fallback_->releasePool(key.first, key.second);
}

void DevicePools::create_or_retain(c10::DeviceIndex device, c10::MempoolId_t id,
                                   std::shared_ptr<native::CUDAAllocator> own) {
  const std::uint64_t number = pool_number(id);
  if (own != nullptr && fallback_ != nullptr) {
    std::lock_guard lock(mutex_);
    foreign_.insert({device, id});
  }
  if (is_own({device, id})) {
    allocator().private_pools().retain(device, number);
  } else {
    fallback_->createOrIncrefPool(device, id, std::move(own));
  }
}

void DevicePools::begin(c10::DeviceIndex device, c10::MempoolId_t id, Filter filter) {
  const Key key{device, id};
  const std::uint64_t number = pool_number(id);
  // A MemPool accepts this stream's requests at once. A graph's pool accepts them only after its
  // capture has begun.
  const bool is_for_capture = !filter(current_stream(device));
  if (is_for_capture) {
    // A replay's writes are not intercepted. So blocks that are live now must keep their addresses,
    // and may no longer be shared.
    FrameworkBridge(allocator()).mark_live_exported();
    end_copy_on_write();
  }
  const bool is_ours = is_own(key);
  const bool is_in_native = is_ours && is_for_capture && fallback_ != nullptr;
  {
    std::lock_guard lock(mutex_);
    TORCH_CHECK(std::none_of(open_.begin(), open_.end(),
                             [&](const Scope& scope) { return scope.key == key; }),
                "beginAllocateToPool: already recording to mempool_id");
    open_.push_back({key, filter, is_for_capture, !is_ours, current_stream(device)});
    failed_.erase(key);
    open_foreign_count_ += static_cast<int>(!is_ours);
  }
  try {
    if (is_in_native) begin_in_native(key, filter);
    if (is_ours) {
      allocator().private_pools().begin(
          device, number,
          [filter = std::move(filter)](StreamHandle stream) {
            return filter(static_cast<cudaStream_t>(stream));
          },
          is_for_capture);
    } else {
      fallback_->beginAllocateToPool(device, id, std::move(filter));
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    close(key);
    throw;
  }
  if (is_for_capture) begin_capture(*this);
}

void DevicePools::end(c10::DeviceIndex device, c10::MempoolId_t id) {
  const Key key{device, id};
  bool was_for_capture = false;
  {
    std::lock_guard lock(mutex_);
    const std::optional<bool> closed = close(key);
    if (!closed && failed_.erase(key) != 0) return;
    TORCH_CHECK(closed.has_value(), "endAllocatePool: not currently recording to mempool_id");
    was_for_capture = *closed;
  }
  end_closed(key, was_for_capture);
}

void DevicePools::end_closed(const Key& key, bool was_for_capture) {
  const auto& [device, id] = key;
  if (was_for_capture) end_capture();
  if (is_own(key)) {
    if (was_for_capture) end_in_native(key);
    allocator().private_pools().end(device, pool_number(id));
  } else {
    fallback_->endAllocateToPool(device, id);
  }
  if (was_for_capture) FrameworkBridge(allocator()).mark_live_exported();
}

void DevicePools::end_failed_captures() {
  std::vector<Scope> ended;
  {
    std::lock_guard lock(mutex_);
    std::copy_if(open_.begin(), open_.end(), std::back_inserter(ended), [](const Scope& scope) {
      return scope.is_for_capture && scope.thread == std::this_thread::get_id();
    });
  }
  std::erase_if(ended, [](const Scope& scope) { return scope.filter(scope.stream); });
  for (const Scope& scope : ended) {
    {
      std::lock_guard lock(mutex_);
      if (!close(scope.key)) continue;
      failed_.insert(scope.key);
    }
    end_closed(scope.key, /*was_for_capture=*/true);
  }
}

void DevicePools::release(c10::DeviceIndex device, c10::MempoolId_t id) {
  const Key key{device, id};
  if (!is_own(key)) {
    fallback_->releasePool(device, id);
    return;
  }
  CachingManagedAllocator& ours = allocator();
  // A graph or pool that the parent made ends in the child too. Its memory belongs to the parent.
  if (ours.inspection().in_forked_child()) return;
  TORCH_CHECK(ours.private_pools().release(device, pool_number(id)), "memory pool (", id.first,
              ", ", id.second, ") has no user on device ", static_cast<int>(device));
  if (ours.private_pools().users(device, pool_number(id)) != 0) return;
  bool has_failed = false;  // the capture of this pool
  {
    std::lock_guard lock(mutex_);
    has_failed = close(key).value_or(false);
    for_oom_.erase(key);
  }
  if (has_failed) {
    end_capture();
    end_in_native(key);
  }
  release_in_native(key);
}

int DevicePools::use_count(c10::DeviceIndex device, c10::MempoolId_t id) {
  if (!is_own({device, id})) return fallback_->getPoolUseCount(device, id);
  return static_cast<int>(allocator().private_pools().users(device, pool_number(id)));
}

void DevicePools::set_use_on_oom(c10::DeviceIndex device, c10::MempoolId_t id, bool use) {
  const Key key{device, id};
  if (!is_own(key)) {
    fallback_->setUseOnOOM(device, id, use);
    return;
  }
  std::lock_guard lock(mutex_);
  if (use) {
    for_oom_.insert(key);
  } else {
    for_oom_.erase(key);
  }
}

void DevicePools::set_no_split(c10::DeviceIndex device, c10::MempoolId_t id) {
  if (!is_own({device, id})) {
    fallback_->setNoSplit(device, id);
    return;
  }
  TORCH_CHECK(allocator().private_pools().give_whole_pages(device, pool_number(id)),
              "memory pool (", id.first, ", ", id.second, ") has no user on device ",
              static_cast<int>(device));
}

void DevicePools::empty(c10::DeviceIndex device, c10::MempoolId_t id) {
  if (is_own({device, id})) allocator().private_pools().release_cached(device, pool_number(id));
}

std::shared_ptr<native::AllocatorState> DevicePools::checkpoint(c10::DeviceIndex device,
                                                                c10::MempoolId_t id) {
  if (!is_own({device, id})) return fallback_->getCheckpointState(device, id);
  const std::uint64_t number = pool_number(id);
  TORCH_CHECK(allocator().private_pools().users(device, number) != 0, "memory pool (", id.first,
              ", ", id.second, ") has no user on device ", static_cast<int>(device));
  auto state = std::make_shared<Checkpoint>();
  state->pool = number;
  state->blocks = allocator().private_pools().blocks(device, number);
  return state;
}

native::CheckpointDelta DevicePools::restore(c10::DeviceIndex device,
                                             const std::shared_ptr<native::AllocatorState>& state,
                                             c10::DeleterFnPtr deleter) {
  auto* ours = dynamic_cast<Checkpoint*>(state.get());
  if (ours == nullptr) {
    TORCH_CHECK(fallback_ != nullptr && state != nullptr,
                "this is not a checkpoint of a memory pool");
    return fallback_->setCheckpointPoolState(device, state);
  }
  native::CheckpointDelta delta;
  for (const auto& block : allocator().private_pools().blocks(device, ours->pool)) {
    delta.ptrs_freed.push_back(block.address);
  }
  try {
    allocator().private_pools().restore(device, ours->pool, ours->blocks);
  } catch (const std::logic_error& error) {
    TORCH_CHECK(false, "uvmalloc: ", error.what());
  }
  for (const auto& block : ours->blocks) {
    delta.dataptrs_allocd.emplace_back(block.address, block.address, deleter,
                                       c10::Device(c10::kCUDA, device));
  }
  return delta;
}

bool DevicePools::has_exactly(c10::DeviceIndex device, c10::MempoolId_t id,
                              const std::unordered_set<void*>& blocks) {
  if (!is_own({device, id})) return fallback_->checkPoolLiveAllocations(device, id, blocks);
  const auto live = allocator().private_pools().blocks(device, pool_number(id));
  return live.size() == blocks.size() &&
         std::all_of(live.begin(), live.end(),
                     [&](const auto& block) { return blocks.contains(block.address); });
}

// Whether the innermost scope that accepts the stream's requests belongs to a foreign pool.
bool DevicePools::goes_to_foreign(c10::DeviceIndex device, cudaStream_t stream) const {
  std::vector<Scope> scopes;
  {
    std::lock_guard lock(mutex_);
    scopes = open_;
  }
  const auto taker = std::find_if(scopes.rbegin(), scopes.rend(), [&](const Scope& scope) {
    return scope.key.first == device && scope.filter(stream);
  });
  return taker != scopes.rend() && taker->is_foreign;
}

void* DevicePools::allocate_from_pools_for_oom(c10::DeviceIndex device, std::size_t size_bytes,
                                               cudaStream_t stream) {
  std::vector<std::uint64_t> pools;
  {
    std::lock_guard lock(mutex_);
    for (const Key& key : for_oom_) {
      if (key.first == device) pools.push_back(pool_number(key.second));
    }
  }
  CachingManagedAllocator& ours = allocator();
  for (std::uint64_t pool : pools) {
    const std::uint64_t scope = ours.private_pools().begin(
        device, pool,
        [thread = std::this_thread::get_id()](StreamHandle) {
          return std::this_thread::get_id() == thread;
        },
        false);
    void* address = nullptr;
    try {
      address = ours.allocate(Facade::kDevice, device, size_bytes, handle(stream));
    } catch (const OutOfMemoryError&) {
      address = nullptr;  // the next pool may have room
    } catch (...) {
      ours.private_pools().end(device, pool, scope);
      ours.private_pools().release(device, pool);
      throw;
    }
    ours.private_pools().end(device, pool, scope);
    ours.private_pools().release(device, pool);
    if (address != nullptr) return address;
  }
  return nullptr;
}

}  // namespace uvm::torch_plugin
