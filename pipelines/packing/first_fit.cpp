#include "pipelines/packing/first_fit.hpp"

#include <algorithm>

namespace uvm {
FirstFit::FirstFit(const PackProblem& problem)
    : problem_(problem), offsets_(problem.size()), placed_(problem.size()) {}

std::int64_t FirstFit::lowest_offset(std::uint32_t buffer) {
  taken_.clear();
  for (const std::uint32_t other : problem_.neighbors(buffer)) {
    if (placed_[other] == 0) continue;
    taken_.emplace_back(offsets_[other], offsets_[other] + problem_.buffer(other).size_bytes);
  }
  std::sort(taken_.begin(), taken_.end());
  const std::int64_t size_bytes = problem_.buffer(buffer).size_bytes;
  std::int64_t offset = 0;
  for (const auto& [begin, end] : taken_) {
    if (begin - offset >= size_bytes) break;
    offset = std::max(offset, end);
  }
  return offset;
}

std::int64_t FirstFit::place(const std::vector<std::uint32_t>& order) {
  placed_.assign(problem_.size(), 0);
  std::int64_t height = 0;
  for (const std::uint32_t buffer : order) {
    offsets_[buffer] = lowest_offset(buffer);
    placed_[buffer] = 1;
    height = std::max(height, offsets_[buffer] + problem_.buffer(buffer).size_bytes);
  }
  return height;
}

}  // namespace uvm
