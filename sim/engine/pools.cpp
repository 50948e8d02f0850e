#include "sim/engine/pools.hpp"

#include <cstddef>

namespace uvmsim {

Pools::Pools(int devices) {
  for (int device = 0; device < devices; ++device) defaults_.push_back(create(device));
  currents_ = defaults_;
}

Pool* Pools::find(PoolHandle handle) {
  const auto it = pools_.find(handle);
  return it == pools_.end() ? nullptr : &it->second;
}

PoolHandle Pools::default_of(int device) const {
  return defaults_[static_cast<std::size_t>(device)];
}

PoolHandle Pools::current_of(int device) const {
  return currents_[static_cast<std::size_t>(device)];
}

Status Pools::set_current(int device, PoolHandle handle) {
  const Pool* pool = find(handle);
  if (pool == nullptr || pool->device != device) return Status::kInvalidValue;
  currents_[static_cast<std::size_t>(device)] = handle;
  return Status::kOk;
}

PoolHandle Pools::create(int device, std::uint64_t most_bytes) {
  // Numbers are not reused, because allocations from a destroyed pool keep its number.
  const auto handle = reinterpret_cast<PoolHandle>(next_++);
  pools_.emplace(handle, Pool{.device = device, .most_bytes = most_bytes});
  return handle;
}

Status Pools::destroy(PoolHandle handle) {
  const Pool* pool = find(handle);
  if (pool == nullptr) return Status::kInvalidValue;
  const auto device = static_cast<std::size_t>(pool->device);
  if (defaults_[device] == handle) return Status::kInvalidValue;
  if (currents_[device] == handle) currents_[device] = defaults_[device];
  pools_.erase(handle);
  return Status::kOk;
}

}  // namespace uvmsim
