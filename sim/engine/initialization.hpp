// The state of this process before a machine exists: whether an interface has been initialised, and
// its visible devices. All interfaces of a process use the device list of the interface that was
// initialised first. A driver interface needs an explicit initialisation call; a runtime on top of
// the driver initialises itself. After either, both count as initialised. Thread-safe.
#pragma once

#include <vector>

#include "sim/engine/export.hpp"

namespace uvmsim {

// Returns the physical numbers of the visible devices, in the order of their ordinals. The first
// call initialises the process and calls `read`; later calls return the same result.
UVMSIM_EXPORT const std::vector<int>& initialize(std::vector<int> (*read)());

// Returns the number of visible devices; 0 before initialize().
UVMSIM_EXPORT int initialized_device_count();

// Returns whether initialize() has run and found a visible device.
UVMSIM_EXPORT bool is_initialized();

// Returns whether this process was forked from the process that loaded this library.
bool is_forked_child();

}  // namespace uvmsim
