// Chooses the block that is evicted from a device when another block needs its chunk. There is one
// class for each rule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace uvm::plan {

inline constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// A block on the device that the current kernel does not use.
struct Candidate {
  std::uint32_t block = 0;
  std::size_t last_use = 0;             // the kernel of its last use
  std::size_t kernel = 0;               // the current kernel
  std::size_t next_use = kNever;        // the kernel of its next use
  std::uint64_t away_ns = 0;            // time of the kernels until its next use; 0: not known
  std::uint64_t rested_ns = 0;          // time of the kernels since its last use; 0: not known
  std::uint64_t live_bytes = 0;         // bytes of live blocks in it now
  std::uint64_t copied_back_bytes = 0;  // bytes that are copied to the host if it is evicted now
};

class VictimChoice {
 public:
  virtual ~VictimChoice() = default;
  // Returns an index into `candidates`, which is not empty.
  virtual std::size_t choose(std::span<const Candidate> candidates) const = 0;
};

// Returns the index of the candidate with the largest rank.
template <class Rank>
std::size_t largest(std::span<const Candidate> candidates, Rank rank) {
  const auto found = std::ranges::max_element(candidates, {}, rank);
  return static_cast<std::size_t>(found - candidates.begin());
}

// Belady's choice: a dead block, else the block whose next use is furthest. Of equal blocks, the
// block that was used longest ago, because its chunk is free earliest.
class FurthestUse final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

// Chooses a dead block, else the block that was used longest ago. Ignores later uses.
class LeastRecentUse final : public VictimChoice {
 public:
  std::size_t choose(std::span<const Candidate> candidates) const override;
};

}  // namespace uvm::plan
