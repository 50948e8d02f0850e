// A run of pages by number, and an access to it. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/engine/units.hpp"

namespace uvmsim {

// Pages [first, last), by number.
struct PageRange {
  std::size_t first;
  std::size_t last;
};

// Returns the number of 2 MiB blocks that the range overlaps.
constexpr std::uint64_t blocks_of(PageRange pages) {
  return round_up(pages.last, kPagesPerBlock) / kPagesPerBlock - pages.first / kPagesPerBlock;
}

struct Access {
  bool read;
  bool write;
  std::uint64_t at_ns = 0;  // virtual time, for rules about repeated accesses
};

}  // namespace uvmsim
