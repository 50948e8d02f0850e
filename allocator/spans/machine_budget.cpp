#include "allocator/spans/machine_budget.hpp"

#include <algorithm>

#include "allocator/policy/allocation_policy.hpp"

namespace uvm {
namespace {

std::size_t less_reserve(std::size_t bytes, std::size_t parts, const Configuration& configuration) {
  const std::size_t automatic = std::min(policy::kMostReserveBytes, bytes / parts);
  return bytes - std::min(configuration.reserve_bytes.value_or(automatic), bytes);
}

}  // namespace

std::size_t thread_cache_bytes(const Configuration& configuration, std::size_t budget_bytes) {
  return configuration.thread_cache_bytes.value_or(
      std::max(policy::kLeastThreadCacheBytes, budget_bytes / policy::kThreadCacheParts));
}

std::size_t host_less_reserve(std::size_t bytes, const Configuration& configuration) {
  return less_reserve(bytes, policy::kHostReserveParts, configuration);
}

std::size_t device_less_reserve(std::size_t bytes, const Configuration& configuration) {
  return less_reserve(bytes, policy::kDeviceReserveParts, configuration);
}

MachineBudget machine_budget(const std::vector<DeviceDescription>& devices,
                             const Configuration& configuration, std::size_t available_host_bytes) {
  MachineBudget budget;
  bool integrated = false;
  for (const DeviceDescription& device : devices) {
    std::size_t soft_bytes = device_less_reserve(device.total_bytes, configuration);
    const DeviceCapabilities& can = device.capabilities;
    budget.devices.push_back({soft_bytes, can.integrated || can.host_page_tables, !can.integrated});
    integrated |= can.integrated;
    if (!can.integrated && !can.memory_is_host_node) budget.hard_bytes += soft_bytes;
  }
  const std::size_t ranks = std::max<std::size_t>(configuration.local_ranks, 1);
  // If there are more ranks than devices, the ranks share the devices evenly.
  const std::size_t per_device =
      (ranks + devices.size() - 1) / std::max<std::size_t>(devices.size(), 1);
  for (DevicePlacement& device : budget.devices) {
    device.soft_budget_bytes = std::min(device.soft_budget_bytes / per_device,
                                        configuration.device_budget_bytes.value_or(SIZE_MAX));
  }
  std::size_t host_bytes = host_less_reserve(available_host_bytes, configuration);
  // An integrated device has no memory of its own: it uses the host's.
  budget.hard_bytes = integrated ? host_bytes : budget.hard_bytes + host_bytes;
  budget.hard_bytes /= ranks;
  if (configuration.budget_bytes) budget.hard_bytes = *configuration.budget_bytes;
  return budget;
}

std::size_t obtainable_bytes(const MemoryFigures& driver, bool integrated,
                             std::size_t available_host_bytes, std::size_t budget_left_bytes) {
  const std::size_t machine_bytes = integrated ? available_host_bytes : driver.free_bytes;
  return std::min({machine_bytes, budget_left_bytes, driver.total_bytes});
}

}  // namespace uvm
