#include "sim/engine/interval_allocator.hpp"

#include <iterator>

namespace uvmsim {

IntervalAllocator::IntervalAllocator(std::size_t size) {
  free_.emplace(0, size);
}

std::optional<std::size_t> IntervalAllocator::allocate(std::size_t length) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, available] = *it;
    if (available < length) continue;
    free_.erase(it);
    if (available > length) free_.emplace(offset + length, available - length);
    return offset;
  }
  return std::nullopt;
}

void IntervalAllocator::free(std::size_t offset, std::size_t length) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + length == next->first) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += length;
      return;
    }
  }
  free_.emplace_hint(next, offset, length);
}

}  // namespace uvmsim
