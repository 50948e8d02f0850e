#include <uvmalloc/storage/first_fit.hpp>

#include <algorithm>
#include <limits>

namespace uvm {
namespace {

constexpr std::size_t kNotPlaced = std::numeric_limits<std::size_t>::max();

}  // namespace

FirstFit::FirstFit(const PackProblem& problem)
    : problem_(problem),
      offsets_(problem.size()),
      position_(problem.size(), kNotPlaced),
      heights_(problem.size() + 1) {}

std::int64_t FirstFit::lowest_offset(std::uint32_t buffer) {
  taken_.clear();
  for (const std::uint32_t other : problem_.neighbors(buffer)) {
    if (position_[other] == kNotPlaced) continue;
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

std::int64_t FirstFit::place(const std::vector<std::uint32_t>& order, std::size_t begin,
                             std::int64_t most_bytes) {
  for (std::size_t at = begin; at < order.size(); ++at) position_[order[at]] = kNotPlaced;
  std::int64_t height = heights_[begin];
  for (std::size_t at = begin; at < order.size(); ++at) {
    const std::uint32_t buffer = order[at];
    offsets_[buffer] = lowest_offset(buffer);
    position_[buffer] = at;
    heights_[at] = height;
    height = std::max(height, offsets_[buffer] + problem_.buffer(buffer).size_bytes);
    if (height > most_bytes) return height;
  }
  heights_[order.size()] = height;
  return height;
}

}  // namespace uvm
