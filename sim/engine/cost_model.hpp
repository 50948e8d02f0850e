// What things cost in virtual time. The only place with such numbers: a machine profile replaces
// them one day.
#pragma once

#include <cstdint>

namespace uvmsim {

// Bytes per virtual nanosecond, which is GB/s.
inline constexpr std::uint64_t kLinkBytesPerNs = 50;
inline constexpr std::uint64_t kDeviceBytesPerNs = 2000;

// What a query of something unfinished costs the host, so that a polling loop comes to an end.
inline constexpr std::uint64_t kQueryNs = 1000;

constexpr std::uint64_t transfer_ns(std::uint64_t bytes, std::uint64_t bytes_per_ns) {
  return (bytes + bytes_per_ns - 1) / bytes_per_ns;
}

}  // namespace uvmsim
