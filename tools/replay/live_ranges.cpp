#include "tools/replay/live_ranges.hpp"

#include <algorithm>
#include <iterator>

namespace uvm::replay {

std::optional<LiveRanges::Range> LiveRanges::add(std::uintptr_t begin, std::size_t size_bytes) {
  size_bytes = std::max<std::size_t>(size_bytes, 1);
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.end() && next->first - begin < size_bytes)
    return Range{next->first, next->second};
  if (next != ranges_.begin()) {
    auto previous = std::prev(next);
    if (begin - previous->first < previous->second) return Range{previous->first, previous->second};
  }
  ranges_.emplace_hint(next, begin, size_bytes);
  return std::nullopt;
}

}  // namespace uvm::replay
