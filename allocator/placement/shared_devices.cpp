#include "allocator/placement/shared_devices.hpp"

#include <string>

#include <fmt/format.h>

#include "hints/oversubscription/live_policy.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

std::string name_of(const Machine& machine, int device) {
  const DeviceDescription& description = machine.device(device);
  if (!description.bus_address.empty()) return description.bus_address;
  return fmt::format("{}-{}", machine.runtime.name(), device);
}

// Returns an empty string, or one clause that says why kernels on the device cannot wait for turns.
// Kernels wait for turns only if moves can be planned.
std::string why_without_turns(const Machine& machine, int device) {
  const DevicePlacement& placement = machine.budget.devices[static_cast<std::size_t>(device)];
  if (placement.coherent) return "it uses the host's memory";
  if (machine.device(device).capabilities.prefetch_blocks)
    return "a prefetch blocks its caller until the copy ends";
  if (live::make_live_policy(machine.configuration.policy) == nullptr) {
    return fmt::format("the policy is {}; accepted: auto, planned, lru",
                       to_string(machine.configuration.policy));
  }
  return {};
}

}  // namespace

std::vector<sharing::SharedDevice> shared_devices(const Machine& machine) {
  if (!machine.configuration.share) return {};
  std::vector<sharing::SharedDevice> shared(static_cast<std::size_t>(machine.device_count()));
  for (int device = 0; device < machine.device_count(); ++device) {
    const std::string why = why_without_turns(machine, device);
    const auto index = static_cast<std::size_t>(device);
    if (why.empty()) {
      shared[index] = {name_of(machine, device), machine.budget.devices[index].soft_budget_bytes};
    } else {
      log(LogLevel::kWarning, "programs do not take turns on device {}: {}", device, why);
    }
  }
  return shared;
}

}  // namespace uvm
