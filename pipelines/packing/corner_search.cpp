#include "pipelines/packing/corner_search.hpp"

#include <algorithm>
#include <limits>
#include <random>
#include <tuple>
#include <utility>

namespace uvm {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

}  // namespace

std::optional<std::vector<std::int64_t>> CornerSearch::fit(std::int64_t height_bytes,
                                                           CornerOrder order,
                                                           std::size_t most_steps, double noise,
                                                           std::uint32_t seed) {
  height_bytes_ = height_bytes;
  most_steps_ = most_steps;
  order_ = order;
  steps_ = 0;
  reset(noise, seed);
  if (problem_.lower_bound_bytes() > height_bytes || !search()) return std::nullopt;
  std::vector<std::int64_t> offsets;
  for (const Buffer& buffer : buffers_) offsets.push_back(buffer.least_offset);
  return offsets;
}

void CornerSearch::reset(double noise, std::uint32_t seed) {
  buffers_.assign(problem_.size(), {});
  sections_.assign(problem_.section_count(), {});
  marked_.clear();
  changes_.clear();
  choices_.clear();
  options_.clear();
  open_count_ = 0;
  std::mt19937 random(seed);
  for (std::uint32_t number = 0; number < problem_.size(); ++number) {
    const PackBuffer& buffer = problem_.buffer(number);
    // A buffer of 0 bytes fits at offset 0.
    buffers_[number].is_placed = buffer.size_bytes == 0;
    if (buffer.size_bytes == 0) continue;
    const auto length = static_cast<double>(buffer.upper - buffer.lower);
    const auto size = static_cast<double>(buffer.size_bytes);
    double& key = buffers_[number].key;
    key = order_ == CornerOrder::kSize ? size : length;
    if (order_ == CornerOrder::kArea) key *= size;
    if (noise > 0) key *= 1 + noise * (static_cast<double>(random()) / 2147483648.0 - 1);
    for (std::size_t section = problem_.first_section(number);
         section < problem_.end_section(number); ++section) {
      sections_[section].floor = 0;
      sections_[section].buffers.push_back(number);
    }
    count(number, true);
  }
}

// Not recursive, because a packing may have as many choices as buffers.
bool CornerSearch::search() {
  while (open_count_ != 0) {
    Group failed = next_group();
    choose(failed);
    if (try_next_case(&choices_.back())) continue;
    while (true) {
      if (choices_.empty() || steps_ > most_steps_) return false;
      Choice& last = choices_.back();
      const bool matters = has_changed(failed, last.changes);
      undo(last);
      if (matters && try_next_case(&last)) break;
      if (matters) failed = last.group;
      choices_.pop_back();
      options_.resize(choices_.empty() ? 0 : choices_.back().end);
    }
  }
  return true;
}

// Returns whether any change from index `changes` on is in the group's sections. If not, these
// changes are not the reason why the group fails.
bool CornerSearch::has_changed(Group group, std::size_t changes) const {
  const auto begin = changes_.begin() + static_cast<std::ptrdiff_t>(changes);
  return std::any_of(begin, changes_.end(), [&](const Change& change) {
    const std::size_t first =
        change.is_floor ? change.number : problem_.first_section(change.number);
    const std::size_t end = change.is_floor ? first + 1 : problem_.end_section(change.number);
    return first < group.end && group.begin < end;
  });
}

// Returns the first group that is not finished.
CornerSearch::Group CornerSearch::next_group() const {
  Group group;
  while (sections_[group.begin].open_buffers == 0) ++group.begin;
  for (group.end = group.begin + 1; sections_[group.end - 1].links != 0;) ++group.end;
  return group;
}

// Chooses the section with the fewest cases. Of equal sections chooses the one with the fewest free
// bytes. CornerOrder::kLowest differs: if every section has several cases, chooses the section with
// the lowest floor. Each section has at least one case, because settle() raises its floor to a
// buffer.
void CornerSearch::choose(Group group) {
  struct {
    std::tuple<std::int64_t, std::size_t, std::int64_t> rank;
    std::uint32_t section = kNone;
    bool may_stay_empty = false;
  } best;
  const auto is_above = [&](std::uint32_t section, std::int64_t floor) {
    return section < group.begin || section >= group.end || sections_[section].floor > floor;
  };
  bool is_forced = false;
  for (std::uint32_t begin = group.begin, end = begin; begin < group.end && !is_forced;
       begin = end) {
    const std::int64_t floor = sections_[begin].floor;
    while (end < group.end && sections_[end].floor == floor) ++end;
    if (!is_above(begin - 1, floor) || !is_above(end, floor)) continue;
    for (std::uint32_t section = begin; section < end && !is_forced; ++section) {
      const std::int64_t free_bytes = height_bytes_ - floor - sections_[section].open_bytes;
      const std::size_t cases = cases_of(section) + (free_bytes > 0 ? 1 : 0);
      is_forced = cases == 1;
      const bool by_floor = order_ == CornerOrder::kLowest && !is_forced;
      const std::tuple rank{by_floor ? floor : -1, by_floor ? 2 : cases, free_bytes};
      if (best.section == kNone || rank < best.rank) best = {rank, section, free_bytes > 0};
    }
  }
  const std::size_t begin = options_.size();
  for (const std::uint32_t buffer : open_in(best.section)) {
    if (lies_on(best.section, buffer)) options_.push_back(buffer);
  }
  const auto first = options_.begin() + static_cast<std::ptrdiff_t>(begin);
  std::stable_sort(first, options_.end(), [this](std::uint32_t left, std::uint32_t right) {
    return buffers_[left].key > buffers_[right].key;
  });
  // Keep one of several equal buffers, because they make equal cases.
  for (auto option = first; option != options_.end();) {
    const bool is_known =
        std::any_of(first, option, [&](std::uint32_t before) { return is_equal(before, *option); });
    option = is_known ? options_.erase(option) : option + 1;
  }
  choices_.push_back(
      {best.section, group, begin, options_.size(), changes_.size(), kNone, best.may_stay_empty});
}

std::span<const std::uint32_t> CornerSearch::open_in(std::uint32_t section) {
  const auto count = static_cast<std::size_t>(sections_[section].open_buffers);
  steps_ += count;
  return std::span(sections_[section].buffers).first(count);
}

bool CornerSearch::lies_on(std::uint32_t section, std::uint32_t buffer) const {
  return buffers_[buffer].least_offset == sections_[section].floor;
}

std::size_t CornerSearch::cases_of(std::uint32_t section) {
  const auto open = open_in(section);
  return static_cast<std::size_t>(std::count_if(
      open.begin(), open.end(), [&](std::uint32_t each) { return lies_on(section, each); }));
}

bool CornerSearch::is_equal(std::uint32_t left, std::uint32_t right) const {
  return problem_.first_section(left) == problem_.first_section(right) &&
         problem_.end_section(left) == problem_.end_section(right) &&
         problem_.buffer(left).size_bytes == problem_.buffer(right).size_bytes;
}

// Tries cases until one may fit. If no case fits, returns false without any change.
bool CornerSearch::try_next_case(Choice* choice) {
  while (choice->next != choice->end && steps_ <= most_steps_) {
    choice->placed = options_[choice->next++];
    if (place(choice->placed)) return true;
    undo(*choice);
  }
  choice->placed = kNone;
  if (!choice->may_stay_empty || steps_ > most_steps_) return false;
  choice->may_stay_empty = false;
  const std::int64_t above = floor_above(choice->section);
  if (above == kNoFloor) return false;
  set_floor(choice->section, above);
  if (settle()) return true;
  undo(*choice);
  return false;
}

// Opens or closes a buffer. Buffers must be opened again in the reverse order of closing.
void CornerSearch::count(std::uint32_t buffer, bool is_open) {
  const std::int32_t change = is_open ? 1 : -1;
  const std::size_t end = problem_.end_section(buffer);
  for (std::size_t number = problem_.first_section(buffer); number < end; ++number) {
    Section& section = sections_[number];
    section.open_bytes += change * problem_.buffer(buffer).size_bytes;
    section.open_buffers += change;
    if (number + 1 < end) section.links += change;
    if (is_open) continue;
    const auto last = section.buffers.begin() + section.open_buffers;
    std::iter_swap(std::find(section.buffers.begin(), last, buffer), last);
  }
  buffers_[buffer].is_placed = !is_open;
  open_count_ += change;
}

bool CornerSearch::place(std::uint32_t buffer) {
  count(buffer, false);
  const std::int64_t top = buffers_[buffer].least_offset + problem_.buffer(buffer).size_bytes;
  for (auto section = static_cast<std::uint32_t>(problem_.first_section(buffer));
       section < problem_.end_section(buffer); ++section) {
    set_floor(section, sections_[section].open_buffers == 0 ? kNoFloor : top);
  }
  return top <= height_bytes_ && settle();
}

void CornerSearch::undo(const Choice& choice) {
  if (choice.placed != kNone) count(choice.placed, true);
  for (; changes_.size() > choice.changes; changes_.pop_back()) {
    const Change& last = changes_.back();
    (last.is_floor ? sections_[last.number].floor : buffers_[last.number].least_offset) =
        last.before;
  }
  for (const std::uint32_t section : marked_) sections_[section].is_marked = false;
  marked_.clear();
}

void CornerSearch::mark(std::uint32_t section) {
  if (std::exchange(sections_[section].is_marked, true)) return;
  marked_.push_back(section);
}

void CornerSearch::set_floor(std::uint32_t section, std::int64_t floor) {
  changes_.push_back({section, true, std::exchange(sections_[section].floor, floor)});
  mark(section);
}

// Raises offsets and floors until nothing changes, so that each buffer is at or above the floors of
// its sections, and each floor is at or above the lowest offset of its buffers. Returns false if a
// section can no longer hold its buffers.
bool CornerSearch::settle() {
  while (!marked_.empty()) {
    const std::uint32_t number = marked_.back();
    marked_.pop_back();
    Section& section = sections_[number];
    section.is_marked = false;
    if (section.open_buffers == 0) continue;
    std::int64_t lowest = kNoFloor;
    for (const std::uint32_t buffer : open_in(number)) {
      if (buffers_[buffer].least_offset < section.floor) raise_offset(buffer, section.floor);
      lowest = std::min(lowest, buffers_[buffer].least_offset);
    }
    if (lowest > section.floor) set_floor(number, lowest);
    if (section.floor > height_bytes_ - section.open_bytes) return false;
  }
  return true;
}

void CornerSearch::raise_offset(std::uint32_t buffer, std::int64_t floor) {
  changes_.push_back({buffer, false, std::exchange(buffers_[buffer].least_offset, floor)});
  for (auto section = static_cast<std::uint32_t>(problem_.first_section(buffer));
       section < problem_.end_section(buffer); ++section) {
    if (sections_[section].floor < floor) mark(section);
  }
}

// Returns the lowest floor that a section can have if no buffer is on its current floor. A buffer
// that could be on the current floor then rests on an unplaced buffer outside the section.
std::int64_t CornerSearch::floor_above(std::uint32_t section) {
  const std::int64_t floor = sections_[section].floor;
  std::int64_t above = kNoFloor;
  for (const std::uint32_t buffer : open_in(section)) {
    if (buffers_[buffer].least_offset > floor) {
      above = std::min(above, buffers_[buffer].least_offset);
      continue;
    }
    steps_ += problem_.neighbors(buffer).size();
    for (const std::uint32_t other : problem_.neighbors(buffer)) {
      const bool is_here =
          problem_.first_section(other) <= section && section < problem_.end_section(other);
      if (buffers_[other].is_placed || is_here) continue;
      const std::int64_t end = buffers_[other].least_offset + problem_.buffer(other).size_bytes;
      above = std::min(above, std::max(end, floor + 1));
    }
  }
  return above;
}

}  // namespace uvm
