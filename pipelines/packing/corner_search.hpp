// Looks for a packing of at most a given height by what lies in the corners of the skyline. It is
// strong where SkylineSearch is weak: where memory is full at most times.
//
// The floor of a section is the lowest offset that a buffer not yet placed can get in it. A valley
// is a run of sections with one floor between higher ones. In a section of a valley either a buffer
// lies on the floor, or nothing does and the floor rises. A buffer on the floor of a valley lies
// within the valley, so nothing can come below it. These cases exclude each other, and every
// packing that is pushed down is in one of them. The search therefore branches over the cases of
// the section that has the fewest. A section without a case ends the branch. A section with one
// case costs no choice. After each step floors and offsets raise each other until nothing changes.
//
// Deterministic: the limit is a number of steps, each a buffer that is looked at in a section, and
// not a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

// Which of several buffers is tried first on one floor: the one with the largest key.
enum class CornerOrder : std::uint8_t { kLength, kSize, kArea };

class CornerSearch {
 public:
  // The problem must outlive the search.
  explicit CornerSearch(const PackProblem& problem);

  // Offsets of at most `height_bytes`. `noise` changes the order at random, by up to so much of
  // each key; 0: not at all. nullopt if there is no such packing, or it was not found within
  // `most_steps`.
  std::optional<std::vector<std::int64_t>> fit(std::int64_t height_bytes, CornerOrder order,
                                               std::size_t most_steps, double noise = 0,
                                               std::uint32_t seed = 0);

  // Whether the last fit() has tried everything: if it found nothing, there is no such packing.
  bool is_exhausted() const { return steps_ <= most_steps_; }
  std::size_t steps() const { return steps_; }  // of the last fit()

 private:
  struct Change {
    std::uint32_t number;  // of a section or of a buffer
    bool is_floor;
    std::int64_t before;
  };
  // A section whose cases are tried one after the other.
  struct Choice {
    std::uint32_t section;
    std::size_t next, end;  // of its buffers in options_
    std::size_t changes;    // how many there were before
    std::uint32_t placed;   // the buffer of the case that is tried, or kNone
    bool may_stay_empty;    // the case that nothing lies on the floor is still to be tried
  };

  void reset(CornerOrder order, double noise, std::uint32_t seed);
  bool search();
  bool choose();
  bool try_next_case(Choice* choice);
  bool place(std::uint32_t buffer);
  void take_back(std::uint32_t buffer);
  void undo(std::size_t changes);
  void set_floor(std::uint32_t section, std::int64_t floor);
  void mark(std::uint32_t section);
  bool settle();
  void raise_offset(std::uint32_t buffer, std::int64_t floor);
  std::int64_t floor_above(std::uint32_t section);
  std::size_t cases_of(std::uint32_t section);
  bool is_equal(std::uint32_t left, std::uint32_t right) const;

  const PackProblem& problem_;
  std::int64_t height_bytes_ = 0;
  std::size_t most_steps_ = 0;
  std::size_t steps_ = 0;
  std::size_t open_count_ = 0;
  std::vector<double> key_;                 // by buffer
  std::vector<std::int64_t> least_offset_;  // by what is placed so far; a placed buffer's own
  std::vector<char> placed_;
  std::vector<std::int64_t> floor_;       // by section; kNoFloor where all buffers are placed
  std::vector<std::int64_t> open_bytes_;  // by section: sizes of those not placed
  std::vector<std::uint32_t> open_in_;    // by section: how many are not placed
  std::vector<std::uint32_t> marked_;     // sections whose floor or buffers have changed
  std::vector<char> is_marked_;
  std::vector<Change> changes_;
  std::vector<Choice> choices_;
  std::vector<std::uint32_t> options_;
};

}  // namespace uvm
