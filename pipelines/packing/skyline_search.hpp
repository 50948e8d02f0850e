// Looks for a packing of at most a given height by a depth-first search in the order of offsets, as
// MiniMalloc does (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated
// Machine Learning", ASPLOS 2023). Every packing can be pushed down until each buffer lies on the
// floor or on another one. Such a packing is found by placing buffers in ascending order of their
// offsets, each at the lowest offset that is free above those placed. Branches are cut in four
// ways:
//  * In each section, the lowest offset that a buffer can still get, plus the sizes of those not
//  placed, must fit.
//  * A buffer is not placed at an offset at or above which another one would already have ended.
//  * Buffers that no time connects any more are searched apart.
//  * Where a buffer fails above which nothing is to be placed, its place was not the reason.
//
// Deterministic: the limit is a number of steps, each a buffer that is looked at, and not a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm {

// Which of two buffers is tried first at one offset: the one with the larger first key, then
// second, then third.
enum class SkylineOrder : std::uint8_t {
  kLengthAreaCrowd,  // the crowd of a buffer: the most bytes not yet placed in one of its sections
  kCrowdAreaLength,
  kCrowdLengthArea,
};

class SkylineSearch {
 public:
  // The problem must outlive the search.
  explicit SkylineSearch(const PackProblem& problem);

  // Offsets of at most `height_bytes`. `noise` changes the order at random, by up to so much of
  // each key; 0: not at all. nullopt if there is no such packing, or it was not found within
  // `most_steps`.
  std::optional<std::vector<std::int64_t>> fit(std::int64_t height_bytes, SkylineOrder order,
                                               std::size_t most_steps, double noise = 0,
                                               std::uint32_t seed = 0);

  // Whether the last fit() has tried everything: if it found nothing, there is no such packing.
  bool is_exhausted() const { return steps_ <= most_steps_; }
  std::size_t steps() const { return steps_; }  // of the last fit()

 private:
  using Numbers = std::vector<std::uint32_t>;
  struct OffsetChange {
    std::uint32_t buffer;
    std::int64_t least_offset;  // before it
  };
  struct FloorChange {
    std::size_t section;
    std::int64_t floor;  // before it
  };
  // How much had changed when a buffer was placed.
  struct Mark {
    std::size_t offsets;
    std::size_t floors;
  };

  void reset();
  bool solve(const Numbers& open);
  bool place_all(const Numbers& open, std::int64_t last_offset, std::uint32_t last_rank);
  bool search(const Numbers& open, std::int64_t last_offset, std::uint32_t last_rank);
  std::vector<std::uint32_t> ranks_of(const Numbers& open) const;
  bool place(std::uint32_t buffer);
  void take_back(std::uint32_t buffer, Mark mark);
  void raise_floor(std::size_t section);
  std::int64_t most_open_bytes(const Numbers& open) const;
  bool may_fit(const Numbers& open, std::int64_t last_offset) const;

  const PackProblem& problem_;
  std::vector<double> factors_;  // by buffer: of its keys
  SkylineOrder order_ = SkylineOrder::kLengthAreaCrowd;
  std::int64_t height_bytes_ = 0;
  std::size_t most_steps_ = 0;
  std::size_t steps_ = 0;
  std::vector<std::uint32_t> rank_;         // within the group that is searched
  std::vector<std::int64_t> least_offset_;  // by what is placed so far; a placed buffer's own
  std::vector<char> placed_;
  std::vector<std::int64_t> open_bytes_;  // by section: sizes of those not placed
  std::vector<std::int64_t> floor_;       // by section: nothing will be placed below it
  std::vector<char> is_raised_;
  std::vector<std::size_t> raised_;
  std::vector<OffsetChange> offset_changes_;
  std::vector<FloorChange> floor_changes_;
};

}  // namespace uvm
