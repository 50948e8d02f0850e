// The devices that this program shares with others (UVMALLOC_SHARE).
#pragma once

#include <vector>

#include "allocator/state/machine.hpp"
#include "hints/sharing/device_sharing.hpp"

namespace uvm {

// By device; empty without the setting. Logs a line for each device that cannot be shared.
std::vector<sharing::SharedDevice> shared_devices(const Machine& machine);

}  // namespace uvm
