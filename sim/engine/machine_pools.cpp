// The machine's calls about stream-ordered pools.
#include <algorithm>

#include "sim/engine/machine.hpp"

namespace uvmsim {

PoolHandle Machine::default_pool(int device) {
  const std::lock_guard lock(mutex_);
  return pools_.default_of(device);
}

PoolHandle Machine::current_pool(int device) {
  const std::lock_guard lock(mutex_);
  return pools_.current_of(device);
}

Status Machine::set_current_pool(int device, PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  return pools_.set_current(device, handle);
}

PoolHandle Machine::create_pool(int device, std::uint64_t most_bytes) {
  const std::lock_guard lock(mutex_);
  return pools_.create(device, most_bytes);
}

Status Machine::destroy_pool(PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  return pools_.destroy(handle);
}

std::optional<Pool> Machine::find_pool(PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  const Pool* pool = pools_.find(handle);
  if (pool == nullptr) return std::nullopt;
  return *pool;
}

Status Machine::set_release_threshold(PoolHandle handle, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Pool* pool = pools_.find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  pool->release_threshold_bytes = bytes;
  return Status::kOk;
}

Status Machine::reset_pool_high(PoolHandle handle) {
  const std::lock_guard lock(mutex_);
  Pool* pool = pools_.find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  pool->used_high_bytes = pool->used_bytes;
  return Status::kOk;
}

Status Machine::allocate_from_pool(PoolHandle handle, std::size_t bytes, void** out) {
  const std::lock_guard lock(mutex_);
  Pool* pool = pools_.find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::uint64_t charge = DeviceMemory::charge_of(bytes);
  if (pool->most_bytes != 0 && pool->used_bytes + charge > pool->most_bytes)
    return Status::kOutOfMemory;
  const Status status = take_device_memory(pool->device, bytes, handle, out);
  if (status != Status::kOk) return status;
  pool->used_bytes += charge;
  pool->used_high_bytes = std::max(pool->used_high_bytes, pool->used_bytes);
  return Status::kOk;
}

}  // namespace uvmsim
