// A run of pages by their numbers, and how something is used there. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvmsim {

// Pages [first, last), by number.
struct PageRange {
  std::size_t first;
  std::size_t last;
};

struct Access {
  bool read;
  bool write;
  std::uint64_t at_ns = 0;  // virtual time, for rules that look at how soon something happens again
};

}  // namespace uvmsim
