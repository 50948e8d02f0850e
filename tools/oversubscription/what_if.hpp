// Repeats one recorded step on a machine with a given amount of memory under a policy, in virtual
// time. So a recording gives the same figures everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/engine/machine_profile.hpp"
#include "sim/replay/hint_policy.hpp"
#include "sim/replay/recording.hpp"

#include "tools/oversubscription/recorded_order.hpp"

namespace uvm::oversubscription {

// The mean of the measured steps.
struct StepFigures {
  std::uint64_t step_ns = 0;
  std::uint64_t kernel_ns = 0;
  std::uint64_t to_device_bytes = 0;
  std::uint64_t to_host_bytes = 0;
  std::uint64_t faults = 0;
  std::uint64_t hint_calls = 0;
  std::uint64_t copied_bytes = 0;  // bytes of explicit copies
  std::size_t repairs = 0;         // number of repairs in the whole run
  std::string failure;             // empty, or the reason why the step does not run
};

class WhatIf {
 public:
  // The number of steps before the measured steps, and of measured steps. The very last step is not
  // measured, because it has no next step to prefetch for.
  static constexpr std::size_t kWarmUpSteps = 6;
  static constexpr std::size_t kMeasuredSteps = 4;

  // `mark` selects the step, as in repeated_step().
  WhatIf(const uvmsim::replay::Recording& recording, const std::string& mark,
         const uvmsim::MachineProfile& profile);

  const Footprint& footprint() const { return footprint_; }
  std::size_t block_bytes() const;  // bytes of all blocks in the recording

  // `memory_bytes` is the memory for programs; the context's memory is added to it.
  StepFigures step(std::string_view policy, std::size_t memory_bytes) const;
  // Returns the durations of one step's kernels and copies, in order, with all memory resident.
  std::vector<std::uint64_t> kernel_ns() const;
  StepFigures all_resident() const { return step("driver", block_bytes()); }

  // Same as step(), but each step runs its kernels in another order. The policy knows the recorded
  // order.
  StepFigures shuffled_step(std::string_view policy, std::size_t memory_bytes) const;

  // Figures of explicit moves (offload.hpp), with the least memory they need, in whole blocks.
  struct ByHand {
    std::size_t memory_bytes = 0;
    StepFigures figures;
  };
  ByHand by_hand(std::string_view name) const;

  // Returns the least memory, in whole blocks, with which a step takes at most `ratio` times the
  // all-resident time. Assumes that more memory is never slower.
  std::size_t smallest_memory(std::string_view policy, double ratio) const;

 private:
  StepFigures step_of(const uvmsim::replay::Recording& recording, std::string_view policy,
                      std::size_t memory_bytes) const;
  StepFigures run(const uvmsim::replay::Recording& recording, uvmsim::replay::HintPolicy& policy,
                  std::size_t memory_bytes) const;

  uvmsim::replay::Recording recording_;
  RecordedOrder order_;
  Footprint footprint_;
  uvmsim::MachineProfile profile_;
};

// Returns the capacity of a device that has `memory_bytes` in addition to its context's memory.
std::size_t capacity_with(std::size_t memory_bytes);

}  // namespace uvm::oversubscription
