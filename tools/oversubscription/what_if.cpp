#include "tools/oversubscription/what_if.hpp"

#include <algorithm>
#include <memory>

#include "sim/engine/device_memory.hpp"
#include "sim/engine/units.hpp"
#include "sim/replay/event_time.hpp"
#include "sim/replay/replay_machine.hpp"

#include "tools/oversubscription/offload.hpp"
#include "tools/oversubscription/policies.hpp"
#include "tools/oversubscription/repeated_step.hpp"

namespace uvm::oversubscription {
namespace {

using uvmsim::kBlockBytes;
using uvmsim::replay::EventKind;
using uvmsim::replay::Outcome;
using uvmsim::replay::Step;

constexpr std::uint64_t kSeed = 1;
constexpr std::size_t kContextUnitBytes = std::size_t{64} << 10;

StepFigures mean_of(const Outcome& outcome) {
  StepFigures sum;
  // The outcome's first step is the part before the first mark.
  for (std::size_t i = 0; i < WhatIf::kMeasuredSteps; ++i) {
    const Step& step = outcome.steps.at(1 + WhatIf::kWarmUpSteps + i);
    const uvmsim_counters& counters = step.counters;
    sum.step_ns += step.duration_ns;
    sum.kernel_ns += step.kernel_ns;
    sum.to_device_bytes += counters.migrated_bytes_to_device;
    sum.to_host_bytes += counters.migrated_bytes_to_host + counters.evicted_bytes;
    sum.faults += counters.faults_device;
    sum.copied_bytes += counters.copy_bytes;
    sum.hint_calls += counters.advice_calls + counters.prefetch_calls + counters.discard_calls;
  }
  for (std::uint64_t* each : {&sum.step_ns, &sum.kernel_ns, &sum.to_device_bytes,
                              &sum.to_host_bytes, &sum.faults, &sum.hint_calls, &sum.copied_bytes})
    *each /= WhatIf::kMeasuredSteps;
  return sum;
}

}  // namespace

std::size_t capacity_with(std::size_t memory_bytes) {
  std::size_t capacity = memory_bytes + uvmsim::DeviceMemory::context_bytes(memory_bytes);
  while (capacity - uvmsim::DeviceMemory::context_bytes(capacity) < memory_bytes)
    capacity += kContextUnitBytes;
  return capacity;
}

WhatIf::WhatIf(const uvmsim::replay::Recording& recording, const std::string& mark,
               const uvmsim::MachineProfile& profile)
    : recording_(repeated_step(recording, mark, kWarmUpSteps + kMeasuredSteps + 1)),
      order_(order_of(recording_)),
      footprint_(footprint_of(recording_, order_)),
      profile_(profile) {
  const uvmsim::CostModel costs(profile.costs, 1, 0);
  for (const uvmsim::replay::Event& event : recording_.events) {
    if (event.kind == EventKind::kKernel || event.kind == EventKind::kCopy)
      order_.order.kernel_ns.push_back(uvmsim::replay::event_ns(recording_, event, costs));
  }
}

std::size_t WhatIf::block_bytes() const {
  return std::max<std::size_t>(recording_.block_addresses.size(), 1) * kBlockBytes;
}

std::vector<std::uint64_t> WhatIf::kernel_ns() const {
  const auto at = [this](std::size_t mark) {
    const std::size_t kernel = order_.kernel_of_event[recording_.marks.at(mark).event];
    return order_.order.kernel_ns.begin() + static_cast<std::ptrdiff_t>(kernel);
  };
  return {at(0), at(1)};
}

StepFigures WhatIf::step(std::string_view policy_name, std::size_t memory_bytes) const {
  return step_of(recording_, policy_name, memory_bytes);
}

StepFigures WhatIf::shuffled_step(std::string_view policy_name, std::size_t memory_bytes) const {
  return step_of(with_shuffled_kernels(recording_, kSeed), policy_name, memory_bytes);
}

StepFigures WhatIf::step_of(const uvmsim::replay::Recording& recording,
                            std::string_view policy_name, std::size_t memory_bytes) const {
  if (policy_name == "off" && memory_bytes < footprint_.peak_bytes) {
    StepFigures none;
    none.failure = "it does not fit";
    return none;
  }
  // Without unified memory, blocks stay on the device once allocated, so all must fit.
  const std::size_t held = policy_name == "off" ? std::max(memory_bytes, block_bytes()) : 0;
  const auto policy = make_policy(policy_name, recording, order_, profile_.costs);
  StepFigures figures = run(recording, *policy, std::max(memory_bytes, held));
  if (const auto* moves = dynamic_cast<const ScheduledMoves*>(policy.get()))
    figures.repairs = moves->repairs();
  return figures;
}

StepFigures WhatIf::run(const uvmsim::replay::Recording& recording,
                        uvmsim::replay::HintPolicy& policy, std::size_t memory_bytes) const {
  uvmsim::MachineProfile profile = profile_;
  profile.capacity_bytes = capacity_with(memory_bytes);
  const Outcome outcome = uvmsim::replay::run(recording, profile, policy);
  if (outcome.failure.empty()) return mean_of(outcome);
  StepFigures none;
  none.failure = outcome.failure;
  return none;
}

WhatIf::ByHand WhatIf::by_hand(std::string_view name) const {
  const Offload offload = offload_of(recording_, name);
  ByHand result;
  result.memory_bytes = (offload.peak_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  result.figures.failure = offload.failure;
  if (offload.failure.empty() && result.memory_bytes >= footprint_.peak_bytes)
    result.figures.failure = "it saves no memory";
  if (!result.figures.failure.empty()) return result;
  OffloadPolicy policy(offload);
  result.figures = run(recording_, policy, block_bytes());
  return result;
}

std::size_t WhatIf::smallest_memory(std::string_view policy, double ratio) const {
  const double most_ns = static_cast<double>(all_resident().step_ns) * ratio;
  std::size_t too_few = 0;
  std::size_t enough = block_bytes() / kBlockBytes;
  while (enough - too_few > 1) {
    const std::size_t blocks = too_few + (enough - too_few) / 2;
    const StepFigures figures = step(policy, blocks * kBlockBytes);
    const bool is_enough =
        figures.failure.empty() && static_cast<double>(figures.step_ns) <= most_ns;
    (is_enough ? enough : too_few) = blocks;
  }
  return enough * kBlockBytes;
}

}  // namespace uvm::oversubscription
