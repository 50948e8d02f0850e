// One bit per 4 KiB page of a 2 MiB block.
#pragma once

#include <bitset>
#include <cstddef>

#include "sim/engine/units.hpp"

namespace uvmsim {

using PageMask = std::bitset<kPagesPerBlock>;

// Bits [first, first + count).
inline PageMask page_mask(std::size_t first, std::size_t count) {
  if (count == 0) return PageMask{};
  return (~PageMask{} >> (kPagesPerBlock - count)) << first;
}

// Most masks are empty or full. Testing for this is faster than counting bits.
inline std::size_t bytes_of(const PageMask& pages) {
  if (pages.none()) return 0;
  return (pages.all() ? kPagesPerBlock : pages.count()) * kPageBytes;
}

}  // namespace uvmsim
