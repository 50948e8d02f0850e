// Rules by which a plan of a recorded step chooses the block that is evicted. These rules need what
// only a recording contains: the times of kernels, and the bytes that a move copies.
#pragma once

#include "hints/oversubscription/victim_choice.hpp"

namespace uvm::plan {

// Belady's choice if blocks differ in the cost of their eviction: a dead block, else the block with
// the longest absence from the device for its cost. The cost is the sum of the bytes that are
// copied to the host, the bytes that are copied back, and the driver's own work for a move,
// expressed in bytes.
class CheapestAbsence final : public VictimChoice {
 public:
  enum class Unit : std::uint8_t { kKernels, kTime };  // unit of a block's absence from the device
  explicit CheapestAbsence(std::uint64_t move_bytes, Unit unit = Unit::kKernels)
      : move_bytes_(move_bytes), unit_(unit) {}
  std::size_t choose(std::span<const Candidate> candidates) const override;

 private:
  const std::uint64_t move_bytes_;
  const Unit unit_;
};

// Belady's choice among the blocks that have not been used for a time; among all blocks if there
// are no such blocks. A block that has just been used is evicted too late for a kernel that needs
// its chunk.
class FurthestRested final : public VictimChoice {
 public:
  explicit FurthestRested(std::uint64_t least_ns) : least_ns_(least_ns) {}
  std::size_t choose(std::span<const Candidate> candidates) const override;

 private:
  const std::uint64_t least_ns_;
};

// Chooses a dead block, else a block that is evicted without a copy, else any block; of equal
// blocks, the block whose next use is furthest. So the link to the host stays idle while there is
// memory that is only read.
class UnchangedFirst final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

}  // namespace uvm::plan
