// The program's advice for a run of pages. A plain value; an allocation keeps its policies in a
// SpanMap.
#pragma once

#include <cstdint>

#include "sim/engine/location.hpp"

namespace uvmsim {

struct Policy {
  int preferred = kNoLocation;
  std::uint64_t accessed_by = 0;  // a bit per device, kHostBit for the host
  bool read_mostly = false;

  static constexpr std::uint64_t kHostBit = std::uint64_t{1} << 63;

  static constexpr std::uint64_t bit_of(int location) {
    return location == kHost ? kHostBit : std::uint64_t{1} << location;
  }

  bool is_accessed_by(int location) const { return (accessed_by & bit_of(location)) != 0; }

  friend bool operator==(const Policy&, const Policy&) = default;
};

enum class Advice {
  kSetReadMostly = 1,
  kUnsetReadMostly,
  kSetPreferredLocation,
  kUnsetPreferredLocation,
  kSetAccessedBy,
  kUnsetAccessedBy,
};

// Returns `policy` changed by `advice` for `location`, which is a device or kHost. Advice without a
// location ignores it.
inline Policy advised(Policy policy, Advice advice, int location) {
  switch (advice) {
    case Advice::kSetReadMostly:
      policy.read_mostly = true;
      break;
    case Advice::kUnsetReadMostly:
      policy.read_mostly = false;
      break;
    case Advice::kSetPreferredLocation:
      policy.preferred = location;
      break;
    case Advice::kUnsetPreferredLocation:
      policy.preferred = kNoLocation;
      break;
    case Advice::kSetAccessedBy:
      policy.accessed_by |= Policy::bit_of(location);
      break;
    case Advice::kUnsetAccessedBy:
      policy.accessed_by &= ~Policy::bit_of(location);
      break;
  }
  return policy;
}

}  // namespace uvmsim
