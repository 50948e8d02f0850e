// Finds the devices that this program shares with other programs (UVMALLOC_SHARE).
#pragma once

#include <vector>

#include "allocator/state/machine.hpp"
#include "hints/sharing/device_sharing.hpp"

namespace uvm {

// Returns one entry for each device, or no entries if the setting is off. Logs a line for each
// device that cannot be shared, and leaves its entry empty.
std::vector<sharing::SharedDevice> shared_devices(const Machine& machine);

}  // namespace uvm
