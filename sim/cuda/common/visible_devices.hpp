// The devices that CUDA_VISIBLE_DEVICES leaves. The variable is read when either stand-in is
// initialised, as the driver does, and both use that list. The engine's devices are alike, so the
// first ones are visible. Only the names of devices (PCI and UUID) follow the numbers of the list.
#pragma once

#include <vector>

namespace uvmsim::cuda {

// Physical numbers of the visible devices, in the order of their ordinals. Initialises the process:
// to be called where the modelled library does so.
const std::vector<int>& visible_devices();

inline int visible_device_count() {
  return static_cast<int>(visible_devices().size());
}
inline bool is_visible(int ordinal) {
  return ordinal >= 0 && ordinal < visible_device_count();
}

}  // namespace uvmsim::cuda
