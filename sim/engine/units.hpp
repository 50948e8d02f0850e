// Page and block sizes of the modelled machine, and rounding. Constants only; no state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvmsim {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kBlockBytes = std::size_t{2} << 20;
inline constexpr std::size_t kPagesPerBlock = kBlockBytes / kPageBytes;

// More memory than any machine has. Larger requests fail before any arithmetic can overflow.
inline constexpr std::size_t kLargestRequestBytes = std::size_t{1} << 46;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr std::size_t round_down(std::size_t value, std::size_t unit) {
  return value / unit * unit;
}

}  // namespace uvmsim
