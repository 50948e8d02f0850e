#include "allocator/state/machine.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/machine_memory.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

std::vector<DeviceDescription> describe_devices(const DeviceRuntime& runtime) {
  std::vector<DeviceDescription> devices(static_cast<std::size_t>(runtime.device_count()));
  for (int device = 0; device < runtime.device_count(); ++device) {
    auto& description = devices[static_cast<std::size_t>(device)];
    if (RuntimeStatus status = runtime.describe(device, &description); !status.ok()) {
      throw std::runtime_error(
          fmt::format("device {} cannot be queried: {}", device, status.text()));
    }
    if (std::string trouble = why_not_usable(device, description); !trouble.empty()) {
      throw std::runtime_error(trouble);
    }
  }
  if (devices.empty()) throw std::runtime_error("there is no device");
  return devices;
}

bool prefetch_blocks(const std::vector<DeviceDescription>& devices) {
  return std::any_of(devices.begin(), devices.end(), [](const DeviceDescription& device) {
    return device.capabilities.prefetch_blocks;
  });
}

// Throws std::invalid_argument if a budget is below the size of a page.
const Configuration& checked(const Configuration& configuration) {
  require_budget("budget_bytes", configuration.budget_bytes.value_or(kPageBytes));
  require_budget("device_budget_bytes", configuration.device_budget_bytes.value_or(kPageBytes));
  return configuration;
}

}  // namespace

void require_budget(std::string_view what, std::size_t bytes) {
  if (bytes >= kPageBytes) return;
  throw std::invalid_argument(
      fmt::format("{} is {}; accepted: 2 MiB or more", what, format_size(bytes)));
}

Machine::Machine(std::unique_ptr<DeviceRuntime> device_runtime, const Configuration& settings,
                 const std::string& figures_file)
    : configuration(checked(settings)),
      runtime(std::move(device_runtime)),
      devices(describe_devices(runtime)),
      budget(machine_budget(devices, configuration, available_host_bytes())),
      span_memory(runtime, devices, configuration, budget.hard_bytes),
      figure_store(kFacades * devices.size(), figures_file),
      events(runtime, runtime.device_count()),
      stream_work(runtime, events),
      sender(runtime, events, figure_store.hints(), prefetch_blocks(devices)) {
  runtime.count_in(&figure_store.calls());
  if (configuration.host_backing == HostBacking::kOrdinary &&
      span_memory.host_backing() != HostBacking::kOrdinary) {
    log(LogLevel::kWarning,
        "{}=ordinary needs devices that reach ordinary memory (pageable memory access), and not "
        "all do; managed memory is used",
        configuration.name_of("UVMALLOC_HOST_MEMORY", "host_backing"));
  }
}

void Machine::check_device(int device) const {
  if (device >= 0 && device < device_count()) return;
  throw std::out_of_range(
      fmt::format("device {} does not exist; there are {}", device, devices.size()));
}

void Machine::check_place(Place place) const {
  if (place.is_device()) check_device(place.index);
}

void Machine::require_device() const {
  if (!in_forked_child()) return;
  throw std::runtime_error(
      "uvmalloc: a device cannot be used in a forked child; start the process with spawn or "
      "forkserver");
}

}  // namespace uvm
