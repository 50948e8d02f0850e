// Locations of memory: a device by its index, the host, or no location.
#pragma once

namespace uvmsim {

inline constexpr int kHost = -1;
inline constexpr int kNoLocation = -2;

}  // namespace uvmsim
