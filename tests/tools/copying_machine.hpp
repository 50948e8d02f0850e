// A machine whose copies take 2 bytes a nanosecond, and whose kernels take their own time alone.
#pragma once

#include <cstdint>

#include <uvmalloc/sim/engine/machine_profile.hpp>
#include <uvmalloc/sim/engine/units.hpp>

namespace uvm::testing {

inline constexpr std::uint64_t kCopyNs = uvmsim::kBlockBytes / 2;

inline uvmsim::MachineProfile copying_machine() {
  uvmsim::MachineProfile profile;
  profile.costs = uvmsim::Costs{};
  profile.costs.to_device_bytes_per_ns = 2;
  profile.costs.to_host_bytes_per_ns = 2;
  return profile;
}

}  // namespace uvm::testing
