// The second packer, for problems that first_fit() does not solve: searches for a packing of at
// most a given height. It is a depth-first search over the corners of the skyline.
//
// The floor of a section is the lowest offset that an unplaced buffer can get in this section. A
// valley is a row of sections with the same floor, between sections with higher floors. Each
// section of a valley has these cases: one of its buffers is on the floor, or no buffer is on it
// and the floor rises. A buffer on a valley's floor is within the valley, so no buffer can get
// below it. The cases are disjoint, and cover every packing in which no buffer can move down. So
// the search branches over the section with the fewest cases. After each step, floors and offsets
// rise until they agree.
//
// If no unplaced buffer crosses the border between two sections, the sections before and after it
// do not affect each other: they belong to different groups. The search finishes one group before
// the next. If a group has no packing, the search returns to the last choice that affected the
// group, and skips all later choices in other groups.
//
// Deterministic: the limit is a number of steps, not a time. A step looks at one buffer in one
// section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

// The key of a buffer. The search tries the buffers for a floor by descending keys. kLowest uses
// the keys of kLength, and fills the lowest floor first, which suits problems with much free
// memory.
enum class CornerOrder : std::uint8_t { kLength, kSize, kArea, kLowest };

class CornerSearch {
 public:
  // The problem must outlive the search.
  explicit CornerSearch(const PackProblem& problem) : problem_(problem) {}

  // Returns the offsets of a packing of at most `height_bytes`. Returns nullopt if there is none,
  // or if the search did not find one within `most_steps`. `noise` changes each key at random by up
  // to this fraction of the key.
  std::optional<std::vector<std::int64_t>> fit(std::int64_t height_bytes, CornerOrder order,
                                               std::size_t most_steps, double noise = 0,
                                               std::uint32_t seed = 0);

  // Returns whether the last fit() has tried everything. If it has and found no packing, there is
  // none.
  bool is_exhausted() const { return steps_ <= most_steps_; }
  std::size_t steps() const { return steps_; }  // of the last fit()

 private:
  static constexpr std::int64_t kNoFloor = std::numeric_limits<std::int64_t>::max();

  struct Buffer {
    double key = 0;
    std::int64_t least_offset = 0;  // lowest possible offset; of a placed buffer, its own offset
    bool is_placed = false;
  };
  struct Section {
    std::int64_t floor = kNoFloor;
    std::int64_t open_bytes = 0;
    std::int32_t open_buffers = 0;
    std::int32_t links = 0;              // open (unplaced) buffers that are in the next section too
    bool is_marked = false;              // whether the section is in marked_
    std::vector<std::uint32_t> buffers;  // the open ones first
  };
  // Sections [begin, end) that open buffers connect.
  struct Group {
    std::uint32_t begin = 0, end = 0;
  };
  struct Change {
    std::uint32_t number;  // of a section or of a buffer
    bool is_floor;
    std::int64_t before;
  };
  // A choice among the cases of a section, which are tried one after the other.
  struct Choice {
    std::uint32_t section;
    Group group;
    std::size_t next, end;  // range in options_: buffers not yet tried
    std::size_t changes;    // number of changes before the choice
    std::uint32_t placed;   // the buffer of the current case, or kNone
    bool may_stay_empty;    // true: the case without a buffer on the floor is still to be tried
  };

  void reset(double noise, std::uint32_t seed);
  bool search();
  bool has_changed(Group group, std::size_t changes) const;
  Group next_group() const;
  void choose(Group group);
  bool try_next_case(Choice* choice);
  void count(std::uint32_t buffer, bool is_open);
  bool place(std::uint32_t buffer);
  void undo(const Choice& choice);
  void set_floor(std::uint32_t section, std::int64_t floor);
  void mark(std::uint32_t section);
  bool settle();
  void raise_offset(std::uint32_t buffer, std::int64_t floor);
  std::int64_t floor_above(std::uint32_t section);
  std::span<const std::uint32_t> open_in(std::uint32_t section);
  bool lies_on(std::uint32_t section, std::uint32_t buffer) const;
  std::size_t cases_of(std::uint32_t section);
  bool is_equal(std::uint32_t left, std::uint32_t right) const;

  const PackProblem& problem_;
  std::int64_t height_bytes_ = 0;
  std::size_t most_steps_ = 0;
  std::size_t steps_ = 0;
  CornerOrder order_ = CornerOrder::kLength;
  std::int64_t open_count_ = 0;  // number of unplaced buffers
  std::vector<Buffer> buffers_;
  std::vector<Section> sections_;
  std::vector<std::uint32_t> marked_;  // sections with a changed floor or changed buffers
  std::vector<Change> changes_;
  std::vector<Choice> choices_;
  std::vector<std::uint32_t> options_;
};

}  // namespace uvm
