// How much memory a process may use: a soft budget per device, beyond which nothing is prefetched
// there, and a hard one for everything, beyond which allocation fails. Rules and defaults:
// docs/configuration.md, "Budgets".
#pragma once

#include <cstddef>
#include <vector>

#include <uvmalloc/allocator/configuration.hpp>
#include <uvmalloc/hints/placement_planner.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>

namespace uvm {

struct MachineBudget {
  std::vector<DevicePlacement> devices;  // with their soft budgets
  std::size_t hard_bytes = 0;
};

// What is left of `bytes` of memory when the reserve is kept free.
std::size_t less_reserve(std::size_t bytes, const Configuration& configuration);

// `available_host_bytes` is what the host can still give; settings in `configuration` override what
// the machine says.
MachineBudget machine_budget(const std::vector<DeviceDescription>& devices,
                             const Configuration& configuration, std::size_t available_host_bytes);

// How much a thread may keep of a stream's freed memory. Others get it back before new pages are
// touched.
std::size_t thread_cache_bytes(const Configuration& configuration, std::size_t budget_bytes);

// What of the free bytes of `driver`, its answer, can really be had: no more than the budget has
// left, and on an integrated device what the host can give, whose page cache the driver takes for
// used. Never more than the device's whole memory.
std::size_t obtainable_bytes(const MemoryFigures& driver, bool integrated,
                             std::size_t available_host_bytes, std::size_t budget_left_bytes);

}  // namespace uvm
