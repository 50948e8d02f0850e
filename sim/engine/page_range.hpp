// A run of pages by their numbers, and how something is used there. Plain values.
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

// How many blocks of 2 MiB it meets.
constexpr std::uint64_t blocks_of(PageRange pages) {
  return round_up(pages.last, kPagesPerBlock) / kPagesPerBlock - pages.first / kPagesPerBlock;
}

struct Access {
  bool read;
  bool write;
  std::uint64_t at_ns = 0;  // virtual time, for rules that look at how soon something happens again
};

}  // namespace uvmsim
