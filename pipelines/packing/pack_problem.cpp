#include "pipelines/packing/pack_problem.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace uvm {
namespace {

struct Events {
  bool begins = false;
  bool ends = false;
};

}  // namespace

PackProblem::PackProblem(std::vector<PackBuffer> buffers)
    : buffers_(std::move(buffers)),
      first_(buffers_.size()),
      end_(buffers_.size()),
      neighbors_(buffers_.size()) {
  std::int64_t all_bytes = 0;
  std::map<std::int64_t, Events> events;  // by time
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
    events[buffer.lower].begins = true;
    events[buffer.upper].ends = true;
  }
  std::vector<std::int64_t> ends;  // by section: the time at which it ends
  bool has_begun = false;
  for (const auto& [time, event] : events) {
    if (event.ends && has_begun) ends.push_back(time);
    has_begun = event.begins || (has_begun && !event.ends);
  }
  live_.resize(ends.size());
  for (std::size_t number = 0; number < buffers_.size(); ++number) {
    const auto ends_after = [&ends](std::int64_t time) {
      return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), time) -
                                      ends.begin());
    };
    first_[number] = ends_after(buffers_[number].lower);
    end_[number] = ends_after(buffers_[number].upper);
    for (std::size_t section = first_[number]; section < end_[number]; ++section) {
      live_[section].push_back(static_cast<std::uint32_t>(number));
    }
  }
  for (const auto& live : live_) {
    std::int64_t bytes = 0;
    for (const std::uint32_t number : live) bytes += buffers_[number].size_bytes;
    lower_bound_bytes_ = std::max(lower_bound_bytes_, bytes);
  }
  constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> neighbor_of(buffers_.size(), kNobody);
  for (std::uint32_t number = 0; number < buffers_.size(); ++number) {
    neighbor_of[number] = number;
    for (std::size_t section = first_[number]; section < end_[number]; ++section) {
      for (const std::uint32_t other : live_[section]) {
        if (std::exchange(neighbor_of[other], number) != number)
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
