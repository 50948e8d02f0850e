// One recorded step, repeated, on a machine with some memory, under a policy. Virtual time: the
// same recording has the same figures everywhere.
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

// A mean step in the steady state.
struct StepFigures {
  std::uint64_t step_ns = 0;
  std::uint64_t kernel_ns = 0;
  std::uint64_t to_device_bytes = 0;
  std::uint64_t to_host_bytes = 0;
  std::uint64_t faults = 0;
  std::uint64_t hint_calls = 0;
  std::uint64_t copied_bytes = 0;  // by explicit copies
  std::size_t repairs = 0;         // of the whole run
  std::string failure;             // empty, or why it does not run
};

class WhatIf {
 public:
  // Steps before the measured ones, and measured ones. The last of all is left out: nothing follows
  // it that would have to be prefetched.
  static constexpr std::size_t kWarmUpSteps = 6;
  static constexpr std::size_t kMeasuredSteps = 4;

  // `mark` as for repeated_step.
  WhatIf(const uvmsim::replay::Recording& recording, const std::string& mark,
         const uvmsim::MachineProfile& profile);

  const Footprint& footprint() const { return footprint_; }
  std::size_t block_bytes() const;  // of all blocks of the recording

  // Memory that programs have; the machine's context takes its part besides.
  StepFigures step(std::string_view policy, std::size_t memory_bytes) const;
  // Of each kernel and copy of one step, in their order, with all memory resident.
  std::vector<std::uint64_t> kernel_ns() const;
  StepFigures all_resident() const { return step("driver", block_bytes()); }

  // The same where each step runs its kernels in another order. The policy knows the recorded one.
  StepFigures shuffled_step(std::string_view policy, std::size_t memory_bytes) const;

  // A way to move memory by hand (offload.hpp), with the least memory that it needs, in blocks.
  struct ByHand {
    std::size_t memory_bytes = 0;
    StepFigures figures;
  };
  ByHand by_hand(std::string_view name) const;

  // The least with which a step takes at most `ratio` of the all-resident time; whole blocks. More
  // memory is taken to be no slower.
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

// The capacity of a device of which the context leaves that much.
std::size_t capacity_with(std::size_t memory_bytes);

}  // namespace uvm::oversubscription
