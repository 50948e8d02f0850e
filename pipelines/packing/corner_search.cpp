#include "pipelines/packing/corner_search.hpp"

#include <algorithm>
#include <limits>
#include <random>

namespace uvm {
namespace {

constexpr std::int64_t kNoFloor = std::numeric_limits<std::int64_t>::max();
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

}  // namespace

CornerSearch::CornerSearch(const PackProblem& problem) : problem_(problem) {}

void CornerSearch::reset(CornerOrder order, double noise, std::uint32_t seed) {
  const std::size_t sections = problem_.section_count();
  key_.assign(problem_.size(), 0);
  least_offset_.assign(problem_.size(), 0);
  placed_.assign(problem_.size(), 0);
  floor_.assign(sections, kNoFloor);
  open_bytes_.assign(sections, 0);
  open_in_.assign(sections, 0);
  is_marked_.assign(sections, 0);
  marked_.clear();
  changes_.clear();
  choices_.clear();
  options_.clear();
  open_count_ = 0;
  std::mt19937 random(seed);
  for (std::uint32_t number = 0; number < problem_.size(); ++number) {
    const PackBuffer& buffer = problem_.buffer(number);
    // Without a size a buffer fits at 0.
    if (buffer.size_bytes == 0) {
      placed_[number] = 1;
      continue;
    }
    const auto length = static_cast<double>(buffer.upper - buffer.lower);
    const auto size = static_cast<double>(buffer.size_bytes);
    key_[number] = order == CornerOrder::kLength ? length
                   : order == CornerOrder::kSize ? size
                                                 : length * size;
    if (noise > 0) key_[number] *= 1 + noise * (static_cast<double>(random()) / 2147483648.0 - 1);
    ++open_count_;
    for (std::size_t section = problem_.first_section(number);
         section < problem_.end_section(number); ++section) {
      floor_[section] = 0;
      open_bytes_[section] += buffer.size_bytes;
      ++open_in_[section];
    }
  }
}

std::optional<std::vector<std::int64_t>> CornerSearch::fit(std::int64_t height_bytes,
                                                           CornerOrder order,
                                                           std::size_t most_steps, double noise,
                                                           std::uint32_t seed) {
  height_bytes_ = height_bytes;
  most_steps_ = most_steps;
  steps_ = 0;
  reset(order, noise, seed);
  if (problem_.lower_bound_bytes() > height_bytes || !search()) return std::nullopt;
  return least_offset_;
}

// Depth first, without recursion: a packing may have as many choices as steps are allowed.
bool CornerSearch::search() {
  while (open_count_ != 0) {
    if (choose() && try_next_case(&choices_.back())) continue;
    while (true) {
      if (choices_.empty() || steps_ > most_steps_) return false;
      Choice& last = choices_.back();
      if (last.placed != kNone) take_back(last.placed);
      undo(last.changes);
      if (try_next_case(&last)) break;
      choices_.pop_back();
      options_.resize(choices_.empty() ? 0 : choices_.back().end);
    }
  }
  return true;
}

// Takes the section with the fewest cases. Returns false if one has none, and takes none then.
bool CornerSearch::choose() {
  struct {
    std::size_t cases = std::numeric_limits<std::size_t>::max();
    std::int64_t free_bytes = 0;
    std::uint32_t section = kNone;
  } best;
  const auto sections = static_cast<std::uint32_t>(floor_.size());
  for (std::uint32_t begin = 0, end = 0; begin < sections; begin = end) {
    const std::int64_t floor = floor_[begin];
    while (end < sections && floor_[end] == floor) ++end;
    const bool is_valley = floor != kNoFloor && (begin == 0 || floor_[begin - 1] > floor) &&
                           (end == sections || floor_[end] > floor);
    if (!is_valley) continue;
    for (std::uint32_t section = begin; section < end; ++section) {
      const std::int64_t free_bytes = height_bytes_ - floor - open_bytes_[section];
      const std::size_t cases = cases_of(section) + (free_bytes > 0 ? 1 : 0);
      if (cases == 0) return false;
      if (cases < best.cases || (cases == best.cases && free_bytes < best.free_bytes)) {
        best = {cases, free_bytes, section};
      }
    }
  }
  const std::size_t begin = options_.size();
  for (const std::uint32_t buffer : problem_.live(best.section)) {
    if (placed_[buffer] == 0 && least_offset_[buffer] == floor_[best.section]) {
      options_.push_back(buffer);
    }
  }
  const auto first = options_.begin() + static_cast<std::ptrdiff_t>(begin);
  std::stable_sort(first, options_.end(), [this](std::uint32_t left, std::uint32_t right) {
    return key_[left] > key_[right];
  });
  // Of equal buffers one is enough.
  for (auto option = first; option != options_.end();) {
    const bool is_known =
        std::any_of(first, option, [&](std::uint32_t before) { return is_equal(before, *option); });
    option = is_known ? options_.erase(option) : option + 1;
  }
  choices_.push_back(
      {best.section, begin, options_.size(), changes_.size(), kNone, best.free_bytes > 0});
  return true;
}

std::size_t CornerSearch::cases_of(std::uint32_t section) {
  const auto live = problem_.live(section);
  steps_ += live.size();
  return static_cast<std::size_t>(std::count_if(live.begin(), live.end(), [&](std::uint32_t each) {
    return placed_[each] == 0 && least_offset_[each] == floor_[section];
  }));
}

bool CornerSearch::is_equal(std::uint32_t left, std::uint32_t right) const {
  return problem_.first_section(left) == problem_.first_section(right) &&
         problem_.end_section(left) == problem_.end_section(right) &&
         problem_.buffer(left).size_bytes == problem_.buffer(right).size_bytes;
}

// Goes on to the next case that may fit. Returns false, with nothing changed, if there is none.
bool CornerSearch::try_next_case(Choice* choice) {
  while (choice->next != choice->end && steps_ <= most_steps_) {
    choice->placed = options_[choice->next++];
    if (place(choice->placed)) return true;
    take_back(choice->placed);
    undo(choice->changes);
  }
  choice->placed = kNone;
  if (!choice->may_stay_empty || steps_ > most_steps_) return false;
  choice->may_stay_empty = false;
  const std::int64_t above = floor_above(choice->section);
  if (above == kNoFloor) return false;
  set_floor(choice->section, above);
  if (settle()) return true;
  undo(choice->changes);
  return false;
}

bool CornerSearch::place(std::uint32_t buffer) {
  const std::int64_t size_bytes = problem_.buffer(buffer).size_bytes;
  const std::int64_t end = least_offset_[buffer] + size_bytes;
  placed_[buffer] = 1;
  --open_count_;
  for (auto section = static_cast<std::uint32_t>(problem_.first_section(buffer));
       section < problem_.end_section(buffer); ++section) {
    open_bytes_[section] -= size_bytes;
    --open_in_[section];
    set_floor(section, open_in_[section] == 0 ? kNoFloor : end);
  }
  return end <= height_bytes_ && settle();
}

// Its changes are undone by undo().
void CornerSearch::take_back(std::uint32_t buffer) {
  const std::int64_t size_bytes = problem_.buffer(buffer).size_bytes;
  placed_[buffer] = 0;
  ++open_count_;
  for (std::size_t section = problem_.first_section(buffer); section < problem_.end_section(buffer);
       ++section) {
    open_bytes_[section] += size_bytes;
    ++open_in_[section];
  }
}

void CornerSearch::undo(std::size_t changes) {
  for (; changes_.size() > changes; changes_.pop_back()) {
    const Change& last = changes_.back();
    (last.is_floor ? floor_ : least_offset_)[last.number] = last.before;
  }
  for (const std::uint32_t section : marked_) is_marked_[section] = 0;
  marked_.clear();
}

void CornerSearch::mark(std::uint32_t section) {
  if (is_marked_[section] != 0) return;
  is_marked_[section] = 1;
  marked_.push_back(section);
}

void CornerSearch::set_floor(std::uint32_t section, std::int64_t floor) {
  changes_.push_back({section, true, floor_[section]});
  floor_[section] = floor;
  mark(section);
}

// A buffer lies at or above the floors of its sections. A floor is at or above the lowest offset of
// its buffers. Returns false if a section can no longer hold its buffers.
bool CornerSearch::settle() {
  while (!marked_.empty()) {
    const std::uint32_t section = marked_.back();
    marked_.pop_back();
    is_marked_[section] = 0;
    if (open_in_[section] == 0) continue;
    std::int64_t lowest = kNoFloor;
    steps_ += problem_.live(section).size();
    for (const std::uint32_t buffer : problem_.live(section)) {
      if (placed_[buffer] != 0) continue;
      if (least_offset_[buffer] < floor_[section]) raise_offset(buffer, floor_[section]);
      lowest = std::min(lowest, least_offset_[buffer]);
    }
    if (lowest > floor_[section]) set_floor(section, lowest);
    if (floor_[section] > height_bytes_ - open_bytes_[section]) return false;
  }
  return true;
}

void CornerSearch::raise_offset(std::uint32_t buffer, std::int64_t floor) {
  changes_.push_back({buffer, false, least_offset_[buffer]});
  least_offset_[buffer] = floor;
  for (auto section = static_cast<std::uint32_t>(problem_.first_section(buffer));
       section < problem_.end_section(buffer); ++section) {
    if (floor_[section] < floor) mark(section);
  }
}

// The lowest floor of a section on whose floor nothing lies. A buffer that could lie there rests on
// one of another section that is not placed yet.
std::int64_t CornerSearch::floor_above(std::uint32_t section) {
  const std::int64_t floor = floor_[section];
  std::int64_t above = kNoFloor;
  for (const std::uint32_t buffer : problem_.live(section)) {
    if (placed_[buffer] != 0) continue;
    if (least_offset_[buffer] > floor) {
      above = std::min(above, least_offset_[buffer]);
      continue;
    }
    steps_ += problem_.neighbors(buffer).size();
    for (const std::uint32_t other : problem_.neighbors(buffer)) {
      const bool is_here =
          problem_.first_section(other) <= section && section < problem_.end_section(other);
      if (placed_[other] != 0 || is_here) continue;
      const std::int64_t end = least_offset_[other] + problem_.buffer(other).size_bytes;
      above = std::min(above, std::max(end, floor + 1));
    }
  }
  return above;
}

}  // namespace uvm
