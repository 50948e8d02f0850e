#include "pipelines/packing/pack_problem.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace uvm {

PackProblem::PackProblem(std::vector<PackBuffer> buffers)
    : buffers_(std::move(buffers)),
      first_(buffers_.size()),
      end_(buffers_.size()),
      neighbors_(buffers_.size()) {
  std::int64_t all_bytes = 0;
  std::vector<std::int64_t> times;
  for (std::size_t number = 0; number < buffers_.size(); ++number) {
    const PackBuffer& buffer = buffers_[number];
    if (buffer.lower >= buffer.upper) {
      throw std::invalid_argument(fmt::format("buffer {} is live from {} to {}: at no time", number,
                                              buffer.lower, buffer.upper));
    }
    if (buffer.size_bytes < 0) {
      throw std::invalid_argument(
          fmt::format("buffer {} has the size {}; accepted: 0 or more", number, buffer.size_bytes));
    }
    if (buffer.size_bytes > kMostBytes - all_bytes) {
      throw std::invalid_argument(
          fmt::format("the buffers up to {} have more than {} bytes together", number, kMostBytes));
    }
    all_bytes += buffer.size_bytes;
    times.push_back(buffer.lower);
    times.push_back(buffer.upper);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  live_.resize(times.empty() ? 0 : times.size() - 1);
  const auto section_at = [&times](std::int64_t time) {
    return static_cast<std::size_t>(std::lower_bound(times.begin(), times.end(), time) -
                                    times.begin());
  };
  for (std::size_t number = 0; number < buffers_.size(); ++number) {
    first_[number] = section_at(buffers_[number].lower);
    end_[number] = section_at(buffers_[number].upper);
    for (std::size_t section = first_[number]; section < end_[number]; ++section) {
      live_[section].push_back(static_cast<std::uint32_t>(number));
    }
  }
  for (const auto& live : live_) {
    std::int64_t bytes = 0;
    for (const std::uint32_t number : live) bytes += buffers_[number].size_bytes;
    lower_bound_bytes_ = std::max(lower_bound_bytes_, bytes);
  }
  std::vector<bool> seen(buffers_.size());
  for (std::size_t number = 0; number < buffers_.size(); ++number) {
    seen.assign(buffers_.size(), false);
    seen[number] = true;
    for (std::size_t section = first_[number]; section < end_[number]; ++section) {
      for (const std::uint32_t other : live_[section]) {
        if (seen[other]) continue;
        seen[other] = true;
        neighbors_[number].push_back(other);
      }
    }
  }
}

std::int64_t PackProblem::height_of(std::span<const std::int64_t> offsets) const {
  std::int64_t height = 0;
  for (std::size_t number = 0; number < buffers_.size(); ++number) {
    height = std::max(height, offsets[number] + buffers_[number].size_bytes);
  }
  return height;
}

std::string PackProblem::fault_of(std::span<const std::int64_t> offsets) const {
  for (std::size_t number = 0; number < buffers_.size(); ++number) {
    if (offsets[number] < 0) return fmt::format("buffer {} lies at {}", number, offsets[number]);
    for (const std::uint32_t other : neighbors_[number]) {
      if (other <= number) continue;
      if (offsets[number] < offsets[other] + buffers_[other].size_bytes &&
          offsets[other] < offsets[number] + buffers_[number].size_bytes) {
        return fmt::format("buffers {} and {} overlap", number, other);
      }
    }
  }
  return {};
}

}  // namespace uvm
