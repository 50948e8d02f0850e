#include "pipelines/packing/skyline_search.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <random>

namespace uvm {

SkylineSearch::SkylineSearch(const PackProblem& problem) : problem_(problem) {}

void SkylineSearch::reset() {
  least_offset_.assign(problem_.size(), 0);
  placed_.assign(problem_.size(), 0);
  rank_.assign(problem_.size(), 0);
  factors_.assign(problem_.size(), 1);
  offset_changes_.clear();
  floor_changes_.clear();
  floor_.assign(problem_.section_count(), 0);
  open_bytes_.assign(problem_.section_count(), 0);
  is_raised_.assign(problem_.section_count(), 0);
  for (std::size_t section = 0; section < problem_.section_count(); ++section) {
    for (const std::uint32_t buffer : problem_.live(section)) {
      open_bytes_[section] += problem_.buffer(buffer).size_bytes;
    }
  }
}

std::optional<std::vector<std::int64_t>> SkylineSearch::fit(std::int64_t height_bytes,
                                                            SkylineOrder order,
                                                            std::size_t most_steps, double noise,
                                                            std::uint32_t seed) {
  order_ = order;
  height_bytes_ = height_bytes;
  most_steps_ = most_steps;
  steps_ = 0;
  reset();
  if (noise > 0) {
    std::mt19937 random(seed);
    for (double& factor : factors_) {
      factor = 1 + noise * (static_cast<double>(random()) / 2147483648.0 - 1);
    }
  }
  Numbers open;
  for (std::uint32_t number = 0; number < problem_.size(); ++number) {
    // Without a size a buffer fits at 0.
    if (problem_.buffer(number).size_bytes == 0) {
      placed_[number] = 1;
    } else {
      open.push_back(number);
    }
  }
  std::stable_sort(open.begin(), open.end(), [this](std::uint32_t left, std::uint32_t right) {
    return problem_.first_section(left) < problem_.first_section(right);
  });
  if (!may_fit(open, 0) || !place_all(open, 0, 0)) return std::nullopt;
  return least_offset_;
}

std::vector<std::uint32_t> SkylineSearch::ranks_of(const Numbers& open) const {
  struct Keyed {
    std::array<double, 3> keys;
    std::uint32_t buffer;
  };
  std::vector<Keyed> keyed;
  keyed.reserve(open.size());
  for (const std::uint32_t number : open) {
    const PackBuffer& buffer = problem_.buffer(number);
    std::int64_t open_bytes = 0;
    for (std::size_t section = problem_.first_section(number);
         section < problem_.end_section(number); ++section) {
      open_bytes = std::max(open_bytes, open_bytes_[section]);
    }
    const double length = static_cast<double>(buffer.upper - buffer.lower) * factors_[number];
    const double area = length * static_cast<double>(buffer.size_bytes);
    const double crowd = static_cast<double>(open_bytes) * factors_[number];
    switch (order_) {
      case SkylineOrder::kLengthAreaCrowd:
        keyed.push_back({{length, area, crowd}, number});
        break;
      case SkylineOrder::kCrowdAreaLength:
        keyed.push_back({{crowd, area, length}, number});
        break;
      case SkylineOrder::kCrowdLengthArea:
        keyed.push_back({{crowd, length, area}, number});
        break;
    }
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const Keyed& left, const Keyed& right) { return left.keys > right.keys; });
  std::vector<std::uint32_t> buffers;
  buffers.reserve(keyed.size());
  for (const Keyed& each : keyed) buffers.push_back(each.buffer);
  return buffers;
}

// A group is ranked by what is open in it. Where it fails, its buffers have their former ranks
// again.
bool SkylineSearch::solve(const Numbers& open) {
  std::vector<std::uint32_t> former;
  former.reserve(open.size());
  for (const std::uint32_t buffer : open) former.push_back(rank_[buffer]);
  std::uint32_t rank = 0;
  for (const std::uint32_t buffer : ranks_of(open)) rank_[buffer] = rank++;
  if (search(open, 0, 0)) return true;
  for (std::size_t place = 0; place < open.size(); ++place) rank_[open[place]] = former[place];
  return false;
}

// Goes on with one group, or with each of several that share no section. `open` is in the order of
// first sections.
bool SkylineSearch::place_all(const Numbers& open, std::int64_t last_offset,
                              std::uint32_t last_rank) {
  std::vector<std::size_t> begins;  // of groups
  std::size_t reach = 0;
  for (std::size_t at = 0; at < open.size(); ++at) {
    if (at == 0 || problem_.first_section(open[at]) >= reach) begins.push_back(at);
    reach = std::max(reach, problem_.end_section(open[at]));
  }
  const bool is_first = offset_changes_.empty() && floor_changes_.empty();
  if (begins.size() == 1 && !is_first) return search(open, last_offset, last_rank);
  const Mark mark{offset_changes_.size(), floor_changes_.size()};
  for (std::size_t group = 0; group < begins.size(); ++group) {
    const std::size_t end = group + 1 < begins.size() ? begins[group + 1] : open.size();
    const Numbers members(open.begin() + static_cast<std::ptrdiff_t>(begins[group]),
                          open.begin() + static_cast<std::ptrdiff_t>(end));
    if (solve(members)) continue;
    for (std::size_t number = begins[group]; number-- > 0;) take_back(open[number], mark);
    return false;
  }
  return true;
}

bool SkylineSearch::search(const Numbers& open, std::int64_t last_offset, std::uint32_t last_rank) {
  steps_ += open.size();
  std::int64_t lowest_end = std::numeric_limits<std::int64_t>::max();
  for (const std::uint32_t buffer : open) {
    lowest_end = std::min(lowest_end, least_offset_[buffer] + problem_.buffer(buffer).size_bytes);
  }
  Numbers candidates;
  for (const std::uint32_t buffer : open) {
    const std::int64_t offset = least_offset_[buffer];
    if (offset < last_offset || offset >= lowest_end) continue;
    // Of two buffers at one offset the one of the lower rank comes first: the other order packs the
    // same.
    if (offset == last_offset && rank_[buffer] < last_rank) continue;
    candidates.push_back(buffer);
  }
  std::sort(candidates.begin(), candidates.end(), [this](std::uint32_t left, std::uint32_t right) {
    if (least_offset_[left] != least_offset_[right]) {
      return least_offset_[left] < least_offset_[right];
    }
    return rank_[left] < rank_[right];
  });
  // What is placed from now on lies at or above the offset of the next buffer, in every section.
  const std::int64_t highest_offset = height_bytes_ - most_open_bytes(open);
  Numbers rest;
  rest.reserve(open.size());
  for (const std::uint32_t buffer : candidates) {
    const std::int64_t offset = least_offset_[buffer];
    if (offset > highest_offset) return false;
    const std::uint32_t rank = rank_[buffer];
    const Mark mark{offset_changes_.size(), floor_changes_.size()};
    if (steps_ > most_steps_) return false;
    const bool has_open_neighbors = place(buffer);
    steps_ += open.size();
    rest.clear();
    std::copy_if(open.begin(), open.end(), std::back_inserter(rest),
                 [buffer](std::uint32_t other) { return other != buffer; });
    if (may_fit(open, offset) && (rest.empty() || place_all(rest, offset, rank))) return true;
    take_back(buffer, mark);
    if (steps_ > most_steps_) return false;
    if (!has_open_neighbors) return false;
  }
  return false;
}

// Returns whether a buffer that is not placed is live together with it.
bool SkylineSearch::place(std::uint32_t buffer) {
  const std::int64_t size_bytes = problem_.buffer(buffer).size_bytes;
  const std::int64_t end = least_offset_[buffer] + size_bytes;
  placed_[buffer] = 1;
  for (std::size_t section = problem_.first_section(buffer); section < problem_.end_section(buffer);
       ++section) {
    open_bytes_[section] -= size_bytes;
    floor_changes_.push_back({section, floor_[section]});
    floor_[section] = end;
  }
  bool has_open_neighbors = false;
  steps_ += problem_.neighbors(buffer).size();
  raised_.clear();
  for (const std::uint32_t other : problem_.neighbors(buffer)) {
    if (placed_[other] != 0) continue;
    has_open_neighbors = true;
    if (least_offset_[other] >= end) continue;
    offset_changes_.push_back({other, least_offset_[other]});
    least_offset_[other] = end;
    for (std::size_t section = problem_.first_section(other); section < problem_.end_section(other);
         ++section) {
      if (is_raised_[section] != 0) continue;
      is_raised_[section] = 1;
      raised_.push_back(section);
    }
  }
  for (const std::size_t section : raised_) raise_floor(section);
  return has_open_neighbors;
}

// To the lowest offset that a buffer can still get.
void SkylineSearch::raise_floor(std::size_t section) {
  is_raised_[section] = 0;
  if (open_bytes_[section] == 0) return;
  steps_ += problem_.live(section).size();
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  for (const std::uint32_t buffer : problem_.live(section)) {
    if (placed_[buffer] == 0) lowest = std::min(lowest, least_offset_[buffer]);
    if (lowest <= floor_[section]) return;
  }
  floor_changes_.push_back({section, floor_[section]});
  floor_[section] = lowest;
}

// Undoes all changes after `mark`. For several buffers that were placed since, it is called with
// the same mark.
void SkylineSearch::take_back(std::uint32_t buffer, Mark mark) {
  for (; offset_changes_.size() > mark.offsets; offset_changes_.pop_back()) {
    least_offset_[offset_changes_.back().buffer] = offset_changes_.back().least_offset;
  }
  for (; floor_changes_.size() > mark.floors; floor_changes_.pop_back()) {
    floor_[floor_changes_.back().section] = floor_changes_.back().floor;
  }
  placed_[buffer] = 0;
  const std::int64_t size_bytes = problem_.buffer(buffer).size_bytes;
  for (std::size_t section = problem_.first_section(buffer); section < problem_.end_section(buffer);
       ++section) {
    open_bytes_[section] += size_bytes;
  }
}

std::int64_t SkylineSearch::most_open_bytes(const Numbers& open) const {
  std::size_t end = 0;
  for (const std::uint32_t buffer : open) end = std::max(end, problem_.end_section(buffer));
  const auto begin = open_bytes_.begin();
  return *std::max_element(
      begin + static_cast<std::ptrdiff_t>(problem_.first_section(open.front())),
      begin + static_cast<std::ptrdiff_t>(end));
}

// In the sections from the first to the last of these buffers.
bool SkylineSearch::may_fit(const Numbers& open, std::int64_t last_offset) const {
  std::size_t section = open.empty() ? 0 : problem_.first_section(open.front());
  std::size_t end = section;
  for (const std::uint32_t buffer : open) end = std::max(end, problem_.end_section(buffer));
  for (; section < end; ++section) {
    if (open_bytes_[section] == 0) continue;
    if (std::max(floor_[section], last_offset) + open_bytes_[section] > height_bytes_) return false;
  }
  return true;
}

}  // namespace uvm
