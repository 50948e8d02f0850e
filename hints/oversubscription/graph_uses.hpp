// The uses of a captured graph, in the form that its launches report.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <uvmalloc/use_range.hpp>

namespace uvm::live {

// `uses` contains the uses of all kernels, in the order of the capture. Joins ranges that overlap,
// because memory that is freed during a capture serves later kernels. Two kernels may touch the
// same bytes, so a joined range never counts as touched only once. The result is in the order of
// the first uses.
inline std::vector<UseRange> joined_uses(const std::vector<UseRange>& uses) {
  std::vector<std::size_t> by_address(uses.size());
  for (std::size_t i = 0; i < uses.size(); ++i) by_address[i] = i;
  std::ranges::sort(by_address, {}, [&](std::size_t i) { return std::pair(uses[i].address, i); });
  struct Joined {
    std::size_t first_use = 0;
    UseRange range;
  };
  std::vector<Joined> joined;
  for (const std::size_t i : by_address) {
    const UseRange& use = uses[i];
    if (joined.empty() ||
        use.address >= joined.back().range.address + joined.back().range.size_bytes) {
      joined.push_back({i, use});
      continue;
    }
    auto& [first_use, range] = joined.back();
    first_use = std::min(first_use, i);
    range.size_bytes = std::max(range.size_bytes, use.address + use.size_bytes - range.address);
    range.access = static_cast<std::uint8_t>((range.access | use.access) & ~kOnce);
  }
  std::ranges::sort(joined, {}, &Joined::first_use);
  std::vector<UseRange> result;
  result.reserve(joined.size());
  for (const Joined& each : joined) result.push_back(each.range);
  return result;
}

}  // namespace uvm::live
