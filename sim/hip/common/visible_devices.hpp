// The devices that HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES where that is unset, leaves. HIP
// reads both. They are read at the first call of any function of HIP, which initialises the HSA
// runtime too.
#pragma once

#include <vector>

namespace uvmsim::hip {

// Physical numbers of the visible devices, in the order of their ordinals. Initialises the process.
const std::vector<int>& visible_devices();

inline int visible_device_count() {
  return static_cast<int>(visible_devices().size());
}
inline bool is_visible(int ordinal) {
  return ordinal >= 0 && ordinal < visible_device_count();
}

}  // namespace uvmsim::hip
