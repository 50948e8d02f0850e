// The devices in CUDA_VISIBLE_DEVICES. The first stand-in to be initialised reads the variable; the
// driver and the runtime library then use the same list. The engine's devices are alike, so for a
// list of n devices the stand-ins show the first n. Only PCI addresses and UUIDs follow the numbers
// in the list.
#pragma once

#include <vector>

namespace uvmsim::cuda {

// Returns the physical numbers of the visible devices, in the order of their ordinals. Initialises
// the process, so call this only in functions in which the modelled library initialises too.
const std::vector<int>& visible_devices();

inline int visible_device_count() {
  return static_cast<int>(visible_devices().size());
}
inline bool is_visible(int ordinal) {
  return ordinal >= 0 && ordinal < visible_device_count();
}

}  // namespace uvmsim::cuda
