// Which block leaves a device when another one needs its chunk. One class for each rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace uvm::plan {

inline constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// A block on the device that the kernel at hand does not use.
struct Candidate {
  std::uint32_t block = 0;
  std::size_t last_use = 0;             // a kernel
  std::size_t kernel = 0;               // the one at hand
  std::size_t next_use = kNever;        // a kernel
  std::uint64_t away_ns = 0;            // that kernels take until then; 0 if that is not known
  std::uint64_t rested_ns = 0;          // that they took since the last use; likewise
  std::uint64_t live_bytes = 0;         // that it holds now
  std::uint64_t copied_back_bytes = 0;  // if it leaves now
};

class VictimChoice {
 public:
  virtual ~VictimChoice() = default;
  // An index into `candidates`, which is not empty.
  virtual std::size_t choose(std::span<const Candidate> candidates) const = 0;
};

// Belady's choice: a dead block, else the one whose next use is furthest. Of equal ones the block
// goes that was used longest ago, so that its chunk is there earliest.
class FurthestUse final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

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

// A dead block, else the one that was used longest ago. It looks at no later use.
class LeastRecentUse final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

}  // namespace uvm::plan
