// Allocates and frees intervals of [0, size), lowest first. Handles no memory. Not synchronised.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace uvmsim {

class IntervalAllocator {
 public:
  explicit IntervalAllocator(std::size_t size);

  // Returns the offset of a free interval of that length, or nullopt.
  std::optional<std::size_t> allocate(std::size_t length);

  // Frees an interval that allocate() returned, as a whole.
  void free(std::size_t offset, std::size_t length);

 private:
  std::map<std::size_t, std::size_t> free_;  // offset -> length; adjacent intervals are merged
};

}  // namespace uvmsim
