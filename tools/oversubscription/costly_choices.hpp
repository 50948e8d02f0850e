// Rules by which a plan of a recorded step chooses the block that leaves. They need what only a
// recording tells: the time of kernels, and the bytes that a move copies.
#pragma once

#include "hints/oversubscription/victim_choice.hpp"

namespace uvm::plan {

// Belady's choice where blocks differ in what they cost: a dead block, else the one that is away
// longest for its cost. The cost is what is copied back now, what is brought again, and what the
// driver's own work for a move costs, as so many bytes.
class CheapestAbsence final : public VictimChoice {
 public:
  enum class Unit : std::uint8_t { kKernels, kTime };  // of an absence
  explicit CheapestAbsence(std::uint64_t move_bytes, Unit unit = Unit::kKernels)
      : move_bytes_(move_bytes), unit_(unit) {}
  std::size_t choose(std::span<const Candidate> candidates) const override;

 private:
  const std::uint64_t move_bytes_;
  const Unit unit_;
};

// Belady's choice among the blocks that have not been used for a time; among all where there are
// none. A block that has just been used leaves too late for a kernel that needs its chunk.
class FurthestRested final : public VictimChoice {
 public:
  explicit FurthestRested(std::uint64_t least_ns) : least_ns_(least_ns) {}
  std::size_t choose(std::span<const Candidate> candidates) const override;

 private:
  const std::uint64_t least_ns_;
};

// A dead block, else one that leaves without a copy, else any; of equal ones the one whose next use
// is furthest. So the way to the host stays idle while there is memory that is only read.
class UnchangedFirst final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

}  // namespace uvm::plan
