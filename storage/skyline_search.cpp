#include <uvmalloc/storage/skyline_search.hpp>

#include <algorithm>
#include <limits>

namespace uvm {

SkylineSearch::SkylineSearch(const PackProblem& problem) : problem_(problem) {}

std::optional<std::vector<std::int64_t>> SkylineSearch::fit(std::int64_t height_bytes,
                                                            const std::vector<std::uint32_t>& ranks,
                                                            std::size_t most_nodes) {
  ranks_ = &ranks;
  height_bytes_ = height_bytes;
  most_nodes_ = most_nodes;
  nodes_ = 0;
  least_offset_.assign(problem_.size(), 0);
  placed_.assign(problem_.size(), false);
  changes_.clear();
  open_bytes_.assign(problem_.section_count(), 0);
  for (std::size_t section = 0; section < problem_.section_count(); ++section) {
    for (const std::uint32_t buffer : problem_.live(section)) {
      open_bytes_[section] += problem_.buffer(buffer).size_bytes;
    }
  }
  Numbers open(problem_.size());
  for (std::uint32_t number = 0; number < open.size(); ++number) open[number] = number;
  std::stable_sort(open.begin(), open.end(), [this](std::uint32_t left, std::uint32_t right) {
    return problem_.first_section(left) < problem_.first_section(right);
  });
  if (!may_fit(open, 0) || !place_all(open, {})) return std::nullopt;
  return least_offset_;
}

// Groups that share no section, one after the other. `open` is in the order of first sections.
bool SkylineSearch::place_all(const Numbers& open, Last last) {
  std::size_t begin = 0;
  std::size_t reach = 0;
  Numbers done;
  for (std::size_t at = 0; at <= open.size(); ++at) {
    if (at < open.size() && (at == begin || problem_.first_section(open[at]) < reach)) {
      reach = std::max(at == begin ? 0 : reach, problem_.end_section(open[at]));
      continue;
    }
    const auto first = open.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = open.begin() + static_cast<std::ptrdiff_t>(at);
    if (first == end) break;
    if (begin == 0 && at == open.size()) return place_group(open, last);
    const std::size_t before = changes_.size();
    if (!place_group(Numbers(first, end), last)) {
      for (std::size_t number = begin; number-- > 0;) take_back(open[number], before);
      return false;
    }
    begin = at;
    if (at < open.size()) reach = problem_.end_section(open[at]);
  }
  return true;
}

bool SkylineSearch::place_group(const Numbers& open, Last last) {
  if (++nodes_ > most_nodes_) return false;
  std::int64_t lowest_end = std::numeric_limits<std::int64_t>::max();
  for (const std::uint32_t buffer : open) {
    const std::int64_t end =
        std::max(least_offset_[buffer], last.offset) + problem_.buffer(buffer).size_bytes;
    lowest_end = std::min(lowest_end, end);
  }
  Numbers candidates;
  for (const std::uint32_t buffer : open) {
    const std::int64_t offset = least_offset_[buffer];
    const bool is_empty = problem_.buffer(buffer).size_bytes == 0;
    if (offset < last.offset || (offset >= lowest_end && !is_empty)) continue;
    // Of two buffers at one offset the one of the lower rank comes first: the other order packs the
    // same.
    if (offset == last.offset && (*ranks_)[buffer] < last.rank) continue;
    candidates.push_back(buffer);
  }
  std::sort(candidates.begin(), candidates.end(), [this](std::uint32_t left, std::uint32_t right) {
    if (least_offset_[left] != least_offset_[right]) {
      return least_offset_[left] < least_offset_[right];
    }
    return (*ranks_)[left] < (*ranks_)[right];
  });
  Numbers rest;
  for (const std::uint32_t buffer : candidates) {
    const std::int64_t offset = least_offset_[buffer];
    const std::size_t changes = changes_.size();
    place(buffer);
    rest.clear();
    std::copy_if(open.begin(), open.end(), std::back_inserter(rest),
                 [buffer](std::uint32_t other) { return other != buffer; });
    if (may_fit(rest, offset) && place_all(rest, {offset, (*ranks_)[buffer]})) return true;
    take_back(buffer, changes);
    if (nodes_ > most_nodes_) return false;
  }
  return false;
}

void SkylineSearch::place(std::uint32_t buffer) {
  const std::int64_t size_bytes = problem_.buffer(buffer).size_bytes;
  const std::int64_t end = least_offset_[buffer] + size_bytes;
  placed_[buffer] = true;
  for (std::size_t section = problem_.first_section(buffer); section < problem_.end_section(buffer);
       ++section) {
    open_bytes_[section] -= size_bytes;
  }
  for (const std::uint32_t other : problem_.neighbors(buffer)) {
    if (placed_[other] || least_offset_[other] >= end) continue;
    changes_.push_back({other, least_offset_[other]});
    least_offset_[other] = end;
  }
}

// Undoes what has changed since there were `changes`; several buffers may be taken back to one
// number.
void SkylineSearch::take_back(std::uint32_t buffer, std::size_t changes) {
  for (; changes_.size() > changes; changes_.pop_back()) {
    least_offset_[changes_.back().buffer] = changes_.back().least_offset;
  }
  placed_[buffer] = false;
  const std::int64_t size_bytes = problem_.buffer(buffer).size_bytes;
  for (std::size_t section = problem_.first_section(buffer); section < problem_.end_section(buffer);
       ++section) {
    open_bytes_[section] += size_bytes;
  }
}

bool SkylineSearch::may_fit(const Numbers& open, std::int64_t last_offset) const {
  std::size_t done = 0;  // sections before it are looked at
  for (const std::uint32_t buffer : open) {
    if (std::max(least_offset_[buffer], last_offset) + problem_.buffer(buffer).size_bytes >
        height_bytes_) {
      return false;
    }
    done = std::max(done, problem_.first_section(buffer));
    for (; done < problem_.end_section(buffer); ++done) {
      std::int64_t floor = std::numeric_limits<std::int64_t>::max();
      for (const std::uint32_t other : problem_.live(done)) {
        if (!placed_[other]) floor = std::min(floor, least_offset_[other]);
      }
      if (std::max(floor, last_offset) + open_bytes_[done] > height_bytes_) return false;
    }
  }
  return true;
}

}  // namespace uvm
