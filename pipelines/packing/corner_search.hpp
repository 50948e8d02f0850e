// The improving packer: looks for a packing of at most a given height by a depth-first search over
// the corners of the skyline.
//
// The floor of a section is the lowest offset that a buffer not yet placed can get in it. A valley
// is a run of sections with one floor between higher ones. In a section of a valley, either a
// buffer lies on the floor, or no buffer does and the floor rises. A buffer on the floor of a
// valley lies within the valley, so no buffer can come below it. These cases exclude each other,
// and every packing that is pushed down is in one of them. So the search branches over the cases of
// the section with the fewest. After each step floors and offsets raise each other until nothing
// changes.
//
// Sections between which no buffer is left to place form groups that do not affect each other. The
// search finishes one group before the next. If a group has no packing, it returns to the last
// choice that affected the group, and past all choices in other groups.
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

// Of several buffers for one floor, the search first tries the one with the largest key. kLowest is
// by length too, and fills the lowest floor first, which suits problems with free memory.
enum class CornerOrder : std::uint8_t { kLength, kSize, kArea, kLowest };

class CornerSearch {
 public:
  // The problem must outlive the search.
  explicit CornerSearch(const PackProblem& problem) : problem_(problem) {}

  // Returns offsets of at most `height_bytes`; nullopt if there is no such packing, or if the
  // search did not find it within `most_steps`. `noise` changes each key at random by up to this
  // part of the key.
  std::optional<std::vector<std::int64_t>> fit(std::int64_t height_bytes, CornerOrder order,
                                               std::size_t most_steps, double noise = 0,
                                               std::uint32_t seed = 0);

  // Whether the last fit() has tried everything: if it found nothing, there is no such packing.
  bool is_exhausted() const { return steps_ <= most_steps_; }
  std::size_t steps() const { return steps_; }  // of the last fit()

 private:
  static constexpr std::int64_t kNoFloor = std::numeric_limits<std::int64_t>::max();

  struct Buffer {
    double key = 0;
    std::int64_t least_offset = 0;  // by the buffers placed so far; a placed buffer's own offset
    bool is_placed = false;
  };
  struct Section {
    std::int64_t floor = kNoFloor;
    std::int64_t open_bytes = 0;
    std::int32_t open_buffers = 0;
    std::int32_t links = 0;              // open buffers that are in the next section too
    bool is_marked = false;              // in marked_
    std::vector<std::uint32_t> buffers;  // open ones first
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
  // A section whose cases are tried one after the other.
  struct Choice {
    std::uint32_t section;
    Group group;
    std::size_t next, end;  // of its buffers in options_
    std::size_t changes;    // number of changes before the choice
    std::uint32_t placed;   // the buffer of the current case, or kNone
    bool may_stay_empty;    // whether the case without a buffer on the floor is still to be tried
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
  std::int64_t open_count_ = 0;  // buffers that are not placed
  std::vector<Buffer> buffers_;
  std::vector<Section> sections_;
  std::vector<std::uint32_t> marked_;  // sections whose floor or buffers have changed
  std::vector<Change> changes_;
  std::vector<Choice> choices_;
  std::vector<std::uint32_t> options_;
};

}  // namespace uvm
