#include "sim/engine/pools.hpp"

#include <algorithm>

#include "sim/engine/machine_state.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim {
namespace {

PoolHandle add(PoolTable& table, const Pool& pool) {
  // Handles are not reused, because allocations from a destroyed pool keep the pool's handle.
  const auto handle = reinterpret_cast<PoolHandle>(table.next++);
  table.pools.emplace(handle, pool);
  return handle;
}

}  // namespace

Pool* PoolTable::find(PoolHandle handle) {
  const auto it = pools.find(handle);
  return it == pools.end() ? nullptr : &it->second;
}

Pools::Pools(SharedState& shared) : shared_(shared) {
  const auto state = shared_.lock();
  for (int device = 0; device < state->settings.devices; ++device)
    state->pools.defaults.push_back(add(state->pools, {.device = device}));
  state->pools.currents = state->pools.defaults;
}

PoolHandle Pools::default_of(int device) {
  return shared_.lock()->pools.defaults[static_cast<std::size_t>(device)];
}

PoolHandle Pools::current_of(int device) {
  return shared_.lock()->pools.currents[static_cast<std::size_t>(device)];
}

Status Pools::set_current(int device, PoolHandle handle) {
  const auto state = shared_.lock();
  const Pool* pool = state->pools.find(handle);
  if (pool == nullptr || pool->device != device) return Status::kInvalidValue;
  state->pools.currents[static_cast<std::size_t>(device)] = handle;
  return Status::kOk;
}

PoolHandle Pools::create(int device, std::uint64_t most_bytes) {
  return add(shared_.lock()->pools, {.device = device, .most_bytes = most_bytes});
}

Status Pools::destroy(PoolHandle handle) {
  const auto state = shared_.lock();
  PoolTable& table = state->pools;
  const Pool* pool = table.find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  const auto device = static_cast<std::size_t>(pool->device);
  if (table.defaults[device] == handle) return Status::kInvalidValue;
  if (table.currents[device] == handle) table.currents[device] = table.defaults[device];
  table.pools.erase(handle);
  return Status::kOk;
}

std::optional<Pool> Pools::find(PoolHandle handle) {
  const auto state = shared_.lock();
  const Pool* pool = state->pools.find(handle);
  return pool != nullptr ? std::optional(*pool) : std::nullopt;
}

Status Pools::set_release_threshold(PoolHandle handle, std::uint64_t bytes) {
  const auto state = shared_.lock();
  Pool* pool = state->pools.find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  pool->release_threshold_bytes = bytes;
  return Status::kOk;
}

Status Pools::reset_high(PoolHandle handle) {
  const auto state = shared_.lock();
  Pool* pool = state->pools.find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  pool->used_high_bytes = pool->used_bytes;
  return Status::kOk;
}

Status Pools::allocate(PoolHandle handle, std::size_t bytes, void** out) {
  const auto state = shared_.lock();
  Pool* pool = state->pools.find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  if (bytes > kLargestRequestBytes) return Status::kOutOfMemory;
  const std::uint64_t charge = DeviceMemory::charge_of(bytes);
  if (pool->most_bytes != 0 && pool->used_bytes + charge > pool->most_bytes)
    return Status::kOutOfMemory;
  const Status status = state->take_device_memory(pool->device, bytes, handle, out);
  if (status != Status::kOk) return status;
  pool->used_bytes += charge;
  pool->used_high_bytes = std::max(pool->used_high_bytes, pool->used_bytes);
  return Status::kOk;
}

}  // namespace uvmsim
