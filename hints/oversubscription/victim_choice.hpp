// Which block leaves a device when another one needs its chunk. One class for each rule.
#pragma once

#include <algorithm>
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

// The index of the candidate with the largest rank.
template <class Rank>
std::size_t largest(std::span<const Candidate> candidates, Rank rank) {
  const auto found = std::ranges::max_element(candidates, {}, rank);
  return static_cast<std::size_t>(found - candidates.begin());
}

// Belady's choice: a dead block, else the one whose next use is furthest. Of equal ones the block
// goes that was used longest ago, so that its chunk is there earliest.
class FurthestUse final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

// A dead block, else the one that was used longest ago. It looks at no later use.
class LeastRecentUse final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

}  // namespace uvm::plan
