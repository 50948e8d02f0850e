// Computes how much memory a process may use. Above the soft budget of a device, nothing is
// prefetched to it. Above the hard budget of the process, allocation fails. Rules and defaults:
// docs/settings.md, "Budgets".
#pragma once

#include <cstddef>
#include <vector>

#include <uvmalloc/configuration.hpp>
#include <uvmalloc/device_runtime.hpp>
#include "hints/placement_planner.hpp"

namespace uvm {

struct MachineBudget {
  std::vector<DevicePlacement> devices;  // each with its soft budget
  std::size_t hard_bytes = 0;
};

// Return the memory of the host, or of a device, minus the reserve that stays free.
std::size_t host_less_reserve(std::size_t bytes, const Configuration& configuration);
std::size_t device_less_reserve(std::size_t bytes, const Configuration& configuration);

// Computes the budgets. `available_host_bytes` is the host memory that is still available. Settings
// in `configuration` override the machine's figures.
MachineBudget machine_budget(const std::vector<DeviceDescription>& devices,
                             const Configuration& configuration, std::size_t available_host_bytes);

// Returns how many bytes of a stream's freed memory one thread may cache. Threads return their
// cached bytes before new pages are touched.
std::size_t thread_cache_bytes(const Configuration& configuration, std::size_t budget_bytes);

// Returns how many bytes of a device this process can obtain: the bytes that the driver reports
// free, but at most the rest of the budget and the device's whole memory. For an integrated device
// the host's available bytes replace the driver's figure, which counts reclaimable page cache as
// used.
std::size_t obtainable_bytes(const MemoryFigures& driver, bool integrated,
                             std::size_t available_host_bytes, std::size_t budget_left_bytes);

}  // namespace uvm
