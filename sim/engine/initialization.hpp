// The state of this process before there is a machine: whether any interface has been initialised,
// and which devices it saw then. All interfaces of a process see the same devices: those that the
// first interface to be initialised saw. A driver interface wants an explicit call first, a runtime
// on top of it initialises by itself, and both then count as initialised. Thread-safe.
#pragma once

#include <vector>

#include "sim/engine/export.hpp"

namespace uvmsim {

// Physical numbers of the visible devices, in the order of their ordinals. The first call in a
// process initialises it: it calls `read`, and later calls return that answer.
UVMSIM_EXPORT const std::vector<int>& initialize(std::vector<int> (*read)());

// How many devices that were; 0 before it.
UVMSIM_EXPORT int initialized_device_count();

// False also where the process was initialised without a visible device.
UVMSIM_EXPORT bool is_initialized();

// Whether this process is a child by fork of the process that loaded this library.
bool is_forked_child();

}  // namespace uvmsim
