// Hands out intervals of [0, size), lowest first, and takes them back. Knows nothing of memory. Not
// synchronised.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace uvmsim {

class IntervalAllocator {
 public:
  explicit IntervalAllocator(std::size_t size);

  // Offset of a free interval of that length, or nothing.
  std::optional<std::size_t> allocate(std::size_t length);

  // Takes back exactly what allocate gave.
  void free(std::size_t offset, std::size_t length);

 private:
  std::map<std::size_t, std::size_t> free_;  // offset -> length; neighbours are merged
};

}  // namespace uvmsim
