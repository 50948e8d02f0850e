// The part of DeviceFacade that limits the memory of a device. The limit is the smaller of two
// values: the fraction that the program sets, and the budget of the device. A request above the
// limit throws.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <c10/cuda/CUDAException.h>
#include <torch/library.h>

#include "pytorch/plugin/facades.hpp"

namespace uvm::torch_plugin {
namespace {

// Returns the budget that each device has at first, in bytes, or SIZE_MAX if there is none.
std::size_t first_budget() {
  return allocator().inspection().configuration().device_budget_bytes.value_or(SIZE_MAX);
}

// Whether torch counts a request that finds no memory as a rejection: if its setting
// throw_on_cudamalloc_oom is on. Torch 2.11 does not have the setting. As with torch's own
// allocator, a request above the fraction of the device always counts as out of memory.
template <class Config>
bool rejects() {
  if constexpr (requires { Config::throw_on_cudamalloc_oom(); }) {
    return Config::throw_on_cudamalloc_oom();
  }
  return false;
}

}  // namespace

void DeviceFacade::set_first_limits(int device_count) {
  const double fraction = native::CUDAAllocatorConfig::per_process_memory_fraction();
  const bool limited = fraction < 1.0 || first_budget() != SIZE_MAX;
  for (int device = 0; limited && device < device_count; ++device) {
    change_limit(static_cast<c10::DeviceIndex>(device), fraction, first_budget());
  }
}

DeviceFacade::Limit DeviceFacade::limit_of(c10::DeviceIndex device) {
  std::lock_guard lock(mutex_);
  return limits_.at(static_cast<size_t>(device));
}

std::uint64_t DeviceFacade::rejections_of(c10::DeviceIndex device) {
  std::lock_guard lock(mutex_);
  return rejections_.at(static_cast<size_t>(device));
}

double DeviceFacade::getMemoryFraction(c10::DeviceIndex device) {
  check_device(device);
  return limit_of(device).fraction;
}

void DeviceFacade::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  check_device(device);
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  change_limit(device, fraction, std::nullopt);
}

void DeviceFacade::set_budget(c10::DeviceIndex device, std::optional<std::size_t> most_bytes) {
  check_device(device);
  change_limit(device, std::nullopt, most_bytes.value_or(first_budget()));
}

std::size_t DeviceFacade::total_bytes(c10::DeviceIndex device) {
  check_device(device);
  DeviceDescription description;  // needs no context
  allocator().inspection().runtime().describe(device, &description);
  return description.total_bytes;
}

void DeviceFacade::change_limit(c10::DeviceIndex device, std::optional<double> fraction,
                                std::optional<std::size_t> budget_bytes) {
  std::lock_guard change(limit_changes_);
  Limit limit = limit_of(device);
  limit.fraction = fraction.value_or(limit.fraction);
  limit.budget_bytes = budget_bytes.value_or(limit.budget_bytes);
  limit.bytes = limit.budget_bytes;
  // A fraction of 1 is not a limit: requests beyond the device's memory are served from host
  // memory.
  if (limit.fraction < 1.0) {
    const auto whole_bytes = static_cast<double>(total_bytes(device));
    limit.bytes = std::min(limit.bytes, static_cast<size_t>(limit.fraction * whole_bytes));
  }
  allocator().limits().set_device_limit(device, limit.bytes);
  std::lock_guard lock(mutex_);
  limits_.at(static_cast<size_t>(device)) = limit;
}

void DeviceFacade::out_of_memory(const OutOfMemoryError& error, c10::DeviceIndex device,
                                 size_t size_bytes, cudaStream_t stream,
                                 const MemoryHistory::Context& context) {
  const auto [free_bytes, total_bytes] = getMemoryInfo(device);
  const auto stats = getDeviceStats(device);
  const auto live = static_cast<size_t>(stats.allocated_bytes[0].current);
  const auto reserved = static_cast<size_t>(stats.reserved_bytes[0].current);
  const size_t pages_bytes = round_up(size_bytes, kPageBytes);
  const Limit limit = limit_of(device);
  const bool limited = limit.bytes != SIZE_MAX;
  if (!limited && rejects<native::CUDAAllocatorConfig>()) {
    tell_of_rejection(device, pages_bytes, reserved, total_bytes);
  } else {
    if (history_.is_watched()) {
      history_.out_of_memory({Facade::kDevice, device, stream}, free_bytes, size_bytes, context);
    }
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size_bytes), live, reserved,
                                     c10::Device(c10::kCUDA, device));
    tell_out_of_memory(device, pages_bytes, limited ? limit.bytes : total_bytes, free_bytes);
  }
  using c10::CachingAllocator::format_size;
  // The message begins with torch's own words because programs search for them.
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   format_size(pages_bytes), ". GPU ", static_cast<int>(device),
                   " has a total capacity of ", format_size(total_bytes), " of which ",
                   format_size(free_bytes), " is free. ",
                   limited ? format_size(limit.bytes) + " allowed; " : std::string(),
                   "Of the allocated memory ", format_size(live), " is allocated by PyTorch, and ",
                   format_size(reserved - std::min(live, reserved)),
                   " is reserved by PyTorch but unallocated. ", error.what());
}

void DeviceFacade::tell_out_of_memory(c10::DeviceIndex device, size_t size_bytes,
                                      size_t allowed_bytes, size_t free_bytes) {
  std::vector<native::OutOfMemoryObserver> observers;
  {
    std::lock_guard lock(mutex_);
    observers = observers_;
  }
  for (const auto& observer : observers) observer(device, size_bytes, allowed_bytes, free_bytes);
}

void DeviceFacade::tell_of_rejection(c10::DeviceIndex device, size_t size_bytes,
                                     size_t reserved_bytes, size_t total_bytes) {
  std::vector<RejectionObserver> observers;
  {
    std::lock_guard lock(mutex_);
    ++rejections_.at(static_cast<size_t>(device));
    observers = rejection_observers_;
  }
  for (const auto& observer : observers) observer(device, size_bytes, reserved_bytes, total_bytes);
}

void DeviceFacade::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

void DeviceFacade::attachOomRejectionObserver(RejectionObserver observer) {
  std::lock_guard lock(mutex_);
  rejection_observers_.push_back(std::move(observer));
}

}  // namespace uvm::torch_plugin

namespace {

// The device -1 means the budget of the process. Without a size, restores the budget at the start.
void set_budget(std::optional<std::int64_t> most_bytes, std::int64_t device) {
  using namespace uvm::torch_plugin;
  if (device >= 0) {
    facades().device->set_budget(static_cast<c10::DeviceIndex>(device), most_bytes);
    return;
  }
  uvm::Limits limits = allocator().limits();
  limits.set_budget(most_bytes ? static_cast<std::size_t>(*most_bytes)
                               : limits.first_budget_bytes());
}

// Returns the bytes to which a fraction refers: the memory of the device or, for the device -1, the
// budget of the process at the start.
std::int64_t whole_budget(std::int64_t device) {
  using namespace uvm::torch_plugin;
  return static_cast<std::int64_t>(
      device < 0 ? allocator().limits().first_budget_bytes()
                 : facades().device->total_bytes(static_cast<c10::DeviceIndex>(device)));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(uvmalloc, library) {
  library.def("set_budget", &set_budget);
  library.def("whole_budget", &whole_budget);
}
