// Stream-ordered pools.
#include <algorithm>

#include <uvmalloc/sim/engine/machine.hpp>

namespace uvmsim {

Pool* Machine::pool_of(PoolHandle handle) {
  const auto it = pools_.find(handle);
  return it == pools_.end() ? nullptr : &it->second;
}

PoolHandle Machine::default_pool(int device) {
  const std::lock_guard lock(mutex_);
  return default_pools_[static_cast<std::size_t>(device)];
}

PoolHandle Machine::current_pool(int device) {
  const std::lock_guard lock(mutex_);
  return current_pools_[static_cast<std::size_t>(device)];
}

Status Machine::set_current_pool(int device, PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  const Pool* pool = pool_of(handle);
  if (pool == nullptr || pool->device != device) return Status::kInvalidValue;
  current_pools_[static_cast<std::size_t>(device)] = handle;
  return Status::kOk;
}

PoolHandle Machine::create_pool(int device) {
  const std::lock_guard lock(mutex_);
  // Not used again: what was taken from a destroyed pool still names it.
  const auto handle = reinterpret_cast<PoolHandle>(next_pool_++);
  pools_.emplace(handle, Pool{.device = device});
  return handle;
}

Status Machine::destroy_pool(PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  const Pool* pool = pool_of(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  const auto device = static_cast<std::size_t>(pool->device);
  if (default_pools_[device] == handle) return Status::kInvalidValue;
  if (current_pools_[device] == handle) current_pools_[device] = default_pools_[device];
  pools_.erase(handle);
  return Status::kOk;
}

std::optional<Pool> Machine::find_pool(PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  const Pool* pool = pool_of(handle);
  if (pool == nullptr) return std::nullopt;
  return *pool;
}

Status Machine::set_release_threshold(PoolHandle handle, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Pool* pool = pool_of(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  pool->release_threshold_bytes = bytes;
  return Status::kOk;
}

Status Machine::reset_pool_high(PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  Pool* pool = pool_of(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  pool->used_high_bytes = pool->used_bytes;
  return Status::kOk;
}

Status Machine::allocate_from_pool(PoolHandle handle, std::size_t bytes, void** out) {
  const std::lock_guard lock(mutex_);
  Pool* pool = pool_of(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  const Status status = take_device_memory(pool->device, bytes, handle, out);
  if (status != Status::kOk) return status;
  pool->used_bytes += DeviceMemory::charge_of(bytes);
  pool->used_high_bytes = std::max(pool->used_high_bytes, pool->used_bytes);
  return Status::kOk;
}

}  // namespace uvmsim
