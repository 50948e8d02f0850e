// The devices in HIP_VISIBLE_DEVICES or, if that is unset, in CUDA_VISIBLE_DEVICES, which HIP reads
// too. The first call of any HIP function reads the variable and initialises the HSA runtime.
#pragma once

#include <vector>

namespace uvmsim::hip {

// Returns the physical numbers of the visible devices, in the order of their ordinals. Initialises
// the process.
const std::vector<int>& visible_devices();

inline int visible_device_count() {
  return static_cast<int>(visible_devices().size());
}
inline bool is_visible(int ordinal) {
  return ordinal >= 0 && ordinal < visible_device_count();
}

}  // namespace uvmsim::hip
