#include "pipelines/packing/first_fit.hpp"

#include <algorithm>
#include <utility>

namespace uvm {

std::vector<std::int64_t> first_fit(const PackProblem& problem,
                                    std::span<const std::uint32_t> order) {
  constexpr std::int64_t kNotPlaced = -1;
  std::vector<std::int64_t> offsets(problem.size(), kNotPlaced);
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // begin and end
  for (const std::uint32_t buffer : order) {
    taken.clear();
    for (const std::uint32_t other : problem.neighbors(buffer)) {
      if (offsets[other] == kNotPlaced) continue;
      taken.emplace_back(offsets[other], offsets[other] + problem.buffer(other).size_bytes);
    }
    std::sort(taken.begin(), taken.end());
    std::int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - offset >= problem.buffer(buffer).size_bytes) break;
      offset = std::max(offset, end);
    }
    offsets[buffer] = offset;
  }
  return offsets;
}

}  // namespace uvm
