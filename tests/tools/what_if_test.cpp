// Handwritten recordings: what a step uses, and what each policy does with less memory.
#include "tools/oversubscription/what_if.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/units.hpp"

#include "tests/tools/made_recording.hpp"
#include "tools/oversubscription/offload.hpp"
#include "tools/oversubscription/policies.hpp"
#include "tools/oversubscription/repeated_step.hpp"

namespace uvm::oversubscription {
namespace {

using testing::copying_machine;
using testing::kCopyNs;
using testing::MadeRecording;
using uvmsim::kBlockBytes;
using uvmsim::kPageBytes;
using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;

class WhatIfTest : public ::testing::Test, protected MadeRecording {
 protected:
  explicit WhatIfTest(std::uint32_t blocks = 4) : MadeRecording(blocks) {}

  WhatIf what_if() {
    add_mark("end");
    return WhatIf(recording, "", copying_machine());
  }
};

TEST_F(WhatIfTest, AStepIsRepeatedAfterWhatCameBeforeIt) {
  add_kernel({0}, 10);
  add_mark("second");
  add_kernel({1}, 20);
  add_mark("end");
  const Recording first = repeated_step(recording, "step", 3);
  EXPECT_EQ(first.events.size(), 4 + 3 * 2 + 1U);
  ASSERT_EQ(first.marks.size(), 4U);
  EXPECT_EQ(first.marks[1].event, 6U);
  EXPECT_EQ(first.events[5].amount, 10U);
  const Recording last = repeated_step(recording, "", 1);
  EXPECT_EQ(last.events[4].amount, 10U) << "the step before is not left out";
  EXPECT_EQ(last.events[6].amount, 20U);
  EXPECT_THROW(repeated_step(recording, "third", 1), std::invalid_argument);
  EXPECT_THROW(repeated_step(recording, "end", 1), std::invalid_argument);
  add_mark("really the end");
  const Recording same = repeated_step(recording, "", 1);
  EXPECT_EQ(same.events.size(), last.events.size());
  EXPECT_EQ(same.events[6].amount, 20U) << "of the last step with a kernel";
  EXPECT_THROW(repeated_step(recording, "end", 1), std::invalid_argument);
}

TEST_F(WhatIfTest, PagesAreLiveFromTheirFirstUseToTheLastBeforeTheyAreFreed) {
  add_kernel({0, 1}, 1);
  add_kernel({0}, 1);
  add_allocation(0, EventKind::kFree);
  add_kernel({1}, 1);
  add_allocation(0, EventKind::kAllocate);
  add_kernel({0}, 1);
  const RecordedOrder order = order_of(recording);
  ASSERT_EQ(order.order.kernels.size(), 4U);
  EXPECT_EQ(order.order.kernels[0][0].live_bytes, 0U) << "nothing has been written yet";
  EXPECT_EQ(order.order.kernels[1][0].live_bytes, kBlockBytes);
  EXPECT_EQ(order.order.kernels[2][0].live_bytes, kBlockBytes);
  EXPECT_EQ(order.order.kernels[3][0].live_bytes, 0U) << "it has been freed";
  EXPECT_EQ(order.order.live_at_end[0], kBlockBytes);
  EXPECT_EQ(order.order.live_at_end[2], 0U);
  EXPECT_TRUE(order.live_before(0, 2).none());
}

TEST_F(WhatIfTest, APageThatTwoAllocationsShareStaysLive) {
  recording.events[0].amount = kBlockBytes - 100;
  add_kernel({0}, 1);
  Event freed = recording.events[0];
  freed.kind = EventKind::kFree;
  recording.events.push_back(freed);
  EXPECT_EQ(order_of(recording).order.live_at_end[0], 2 * kPageBytes);
}

TEST_F(WhatIfTest, WithAllOfItsMemoryEveryPolicyTakesTheTimeOfTheKernels) {
  add_kernel({0}, 100);
  add_kernel({1, 2}, 200);
  const WhatIf whole = what_if();
  EXPECT_EQ(whole.footprint().peak_bytes, 3 * kBlockBytes);
  EXPECT_EQ(whole.footprint().largest_kernel_blocks, 2U);
  for (const std::string_view policy : kPolicyNames) {
    const StepFigures figures = whole.step(policy, whole.block_bytes());
    EXPECT_EQ(figures.failure, "") << policy;
    EXPECT_EQ(figures.step_ns, 300U) << policy;
    EXPECT_EQ(figures.to_device_bytes, 0U) << policy;
    EXPECT_EQ(figures.hint_calls, 0U) << policy;
  }
}

TEST_F(WhatIfTest, APlanMovesWhatBeladyMovesAndHidesItBehindKernels) {
  for (std::uint32_t block = 0; block < 4; ++block) add_kernel({block}, 10 * kCopyNs);
  const WhatIf shorter = what_if();
  const StepFigures driver = shorter.step("driver", 3 * kBlockBytes);
  EXPECT_EQ(driver.to_device_bytes, 4 * kBlockBytes) << "the oldest is always what is needed next";
  const StepFigures lru = shorter.step("lru", 3 * kBlockBytes);
  EXPECT_EQ(lru.to_device_bytes, 4 * kBlockBytes);
  EXPECT_EQ(lru.faults, 0U);
  const StepFigures planned = shorter.step("planned", 3 * kBlockBytes);
  // Belady evicts the block that was just used, so three rounds of four kernels have four arrivals.
  EXPECT_LE(planned.to_device_bytes, 2 * kBlockBytes);
  EXPECT_GT(planned.to_device_bytes, 0U);
  EXPECT_EQ(planned.faults, 0U);
  EXPECT_EQ(planned.repairs, 0U);
  EXPECT_LT(planned.step_ns, driver.step_ns);
  EXPECT_NE(shorter.step("off", 3 * kBlockBytes).failure, "");
}

TEST_F(WhatIfTest, ARunningProgramIsPlannedOnceItsStepIsKnown) {
  // In a circle, the oldest block is always needed next.
  for (int round = 0; round < 4; ++round)
    for (std::uint32_t block = 0; block < 4; ++block) add_kernel({block}, 10 * kCopyNs);
  const WhatIf shorter = what_if();
  const StepFigures driver = shorter.step("driver", 3 * kBlockBytes);
  const StepFigures live = shorter.step("auto", 3 * kBlockBytes);
  EXPECT_EQ(driver.to_device_bytes, 16 * kBlockBytes);
  // A program leaves part of the device free, here one block, so this is Belady with two blocks.
  EXPECT_LE(live.to_device_bytes, 11 * kBlockBytes);
  EXPECT_EQ(live.faults, 0U);
  EXPECT_LT(live.step_ns, driver.step_ns);
}

TEST_F(WhatIfTest, AStepFreesTheBlocksThatTheStepBeforeHasLeft) {
  // The step frees block 0 of the step before, and leaves block 1 to the next step.
  add_kernel({0}, 10);
  add_allocation(0, EventKind::kFree);
  add_allocation(1, EventKind::kFree);
  add_allocation(1, EventKind::kAllocate);
  add_kernel({1}, 10);
  add_mark("end");
  const Recording repeated = repeated_step(recording, "", 3);
  std::vector<std::uint32_t> freed;
  for (const Event& event : repeated.events)
    if (event.kind == EventKind::kFree) freed.push_back(event.block);
  EXPECT_EQ(freed, (std::vector<std::uint32_t>{0, 1, 1, 1, 1, 1}));
}

TEST_F(WhatIfTest, WhatIsOnlyReadIsNotCopiedBack) {
  // Each use needs the only chunk. A block that leaves for the first time has no copy on the host,
  // so it is copied then, before the measured steps.
  for (std::uint32_t block = 0; block < 3; ++block) add_kernel({block}, 10 * kCopyNs, UVMSIM_READ);
  const WhatIf reads = what_if();
  EXPECT_EQ(reads.step("driver", kBlockBytes).to_host_bytes, 3 * kBlockBytes);
  EXPECT_EQ(reads.step("lru", kBlockBytes).to_host_bytes, 3 * kBlockBytes);
  const StepFigures planned = reads.step("planned", kBlockBytes);
  EXPECT_EQ(planned.to_device_bytes, 3 * kBlockBytes);
  EXPECT_EQ(planned.to_host_bytes, 0U);
  EXPECT_EQ(planned.faults, 0U);
}

TEST_F(WhatIfTest, DeadMemoryIsNotCopied) {
  for (std::uint32_t block = 0; block < 4; ++block) {
    add_kernel({block}, 10);
    add_allocation(block, EventKind::kFree);
    add_allocation(block, EventKind::kAllocate);
  }
  const WhatIf dead = what_if();
  EXPECT_NE(dead.step("driver", 2 * kBlockBytes).to_host_bytes, 0U);
  const StepFigures planned = dead.step("planned", 2 * kBlockBytes);
  EXPECT_EQ(planned.to_host_bytes, 0U);
  EXPECT_EQ(planned.to_device_bytes, 0U);
}

TEST_F(WhatIfTest, AKernelThatNeedsMoreThanThereIsRunsAndWhatFollowsToo) {
  add_kernel({0, 1, 2}, 10);
  add_kernel({3}, 10);
  add_kernel({0}, 10);
  const WhatIf large = what_if();
  const StepFigures planned = large.step("planned", 2 * kBlockBytes);
  EXPECT_EQ(planned.failure, "");
  EXPECT_NE(planned.faults, 0U);
}

TEST_F(WhatIfTest, TheSmallestMemoryIsThatOfTheFirstStepWithinTheRatio) {
  for (std::uint32_t block = 0; block < 4; ++block) add_kernel({block}, 20 * kCopyNs);
  const WhatIf any = what_if();
  const std::size_t planned = any.smallest_memory("planned", 1.1);
  EXPECT_LT(planned, any.smallest_memory("driver", 1.05));
  const double most_ns = 1.1 * static_cast<double>(any.all_resident().step_ns);
  EXPECT_LE(static_cast<double>(any.step("planned", planned).step_ns), most_ns);
  EXPECT_EQ(any.smallest_memory("off", 1.1), any.block_bytes());
}

TEST_F(WhatIfTest, CopiesAreHiddenInBothDirectionsWhereKernelsAreLong) {
  // One chunk fewer than blocks, and kernels as long as three copies.
  for (int round = 0; round < 3; ++round)
    for (std::uint32_t block = 0; block < 4; ++block) add_kernel({block}, 3 * kCopyNs);
  const WhatIf hidden = what_if();
  const StepFigures planned = hidden.step("planned", 3 * kBlockBytes);
  EXPECT_GT(planned.to_device_bytes, 3 * kBlockBytes);
  EXPECT_GT(planned.to_host_bytes, 3 * kBlockBytes);
  EXPECT_EQ(planned.step_ns, hidden.all_resident().step_ns);
  EXPECT_GT(hidden.step("lru", 3 * kBlockBytes).step_ns, planned.step_ns);
  EXPECT_GT(2 * hidden.step("driver", 3 * kBlockBytes).step_ns, 3 * planned.step_ns);
}

TEST_F(WhatIfTest, InAnOrderThatIsNotTheRecordedOneThePlanIsGivenUp) {
  for (int round = 0; round < 3; ++round)
    for (std::uint32_t block = 0; block < 4; ++block)
      add_kernel({block}, kCopyNs, round == 0 ? UVMSIM_READ | UVMSIM_WRITE : UVMSIM_READ);
  const Recording repeated = [this] {
    add_mark("end");
    return repeated_step(recording, "", 2);
  }();
  const Recording shuffled = with_shuffled_kernels(repeated, 1);
  ASSERT_EQ(shuffled.events.size(), repeated.events.size());
  const auto touches_of = [](const Recording& from) {
    std::vector<std::uint32_t> result;
    for (const Event& event : from.events)
      if (event.kind == EventKind::kKernel) result.push_back(event.first_touch);
    return result;
  };
  std::vector<std::uint32_t> one = touches_of(repeated);
  std::vector<std::uint32_t> other = touches_of(shuffled);
  EXPECT_NE(one, other);
  std::ranges::sort(one);
  std::ranges::sort(other);
  EXPECT_EQ(one, other);
  const WhatIf step(recording, "", copying_machine());
  const StepFigures driver = step.shuffled_step("driver", 3 * kBlockBytes);
  const StepFigures planned = step.shuffled_step("planned", 3 * kBlockBytes);
  EXPECT_EQ(planned.hint_calls, 0U) << "it has given up before the measured steps";
  EXPECT_EQ(planned.step_ns, driver.step_ns);
  EXPECT_GT(driver.faults, 0U);
  EXPECT_NE(step.step("planned", 3 * kBlockBytes).hint_calls, 0U);
}

TEST_F(WhatIfTest, AWeightThatIsMovedByHandIsCopiedForEachModuleThatUsesIt) {
  for (const std::uint32_t block : {0, 1, 2, 0}) add_kernel({block}, 100, UVMSIM_READ);
  const WhatIf reads = what_if();
  const WhatIf::ByHand weights = reads.by_hand("offload-weights");
  EXPECT_EQ(weights.memory_bytes, kBlockBytes);
  EXPECT_EQ(weights.figures.step_ns, 400 + 4 * kCopyNs);
  EXPECT_EQ(weights.figures.copied_bytes, 4 * kBlockBytes);
  EXPECT_NE(reads.by_hand("offload-activations").figures.failure, "");
  EXPECT_NE(reads.by_hand("offload-optimizer").figures.failure, "");
  EXPECT_THROW(reads.by_hand("offload"), std::invalid_argument);
}

TEST_F(WhatIfTest, StateThatIsMovedByHandIsThereForTheOptimizerAlone) {
  const Event inner = recording.events[3];
  recording.events.erase(recording.events.begin() + 3);
  recording.marks[0].event = 3;
  add_kernel({1}, 10);
  recording.events.push_back(inner);
  add_kernel({1, 3}, 100);
  add_allocation(3, EventKind::kFree);
  add_kernel({0}, 50);
  const WhatIf trains = what_if();
  EXPECT_EQ(trains.footprint().peak_bytes, 3 * kBlockBytes);
  const WhatIf::ByHand state = trains.by_hand("offload-optimizer");
  EXPECT_EQ(state.memory_bytes, 2 * kBlockBytes);
  EXPECT_EQ(state.figures.step_ns, 160 + 2 * kCopyNs);
  EXPECT_EQ(state.figures.copied_bytes, 2 * kBlockBytes);
}

// Blocks 0 and 1 are weights, 2 and 3 the optimizer's state, 4 an activation, 5 a gradient. Blocks
// 6 to 8 are short-lived memory of the optimizer, and are live when the step uses most memory.
class SmallModelTest : public ::testing::Test, protected MadeRecording {
 protected:
  SmallModelTest() : MadeRecording(9) {
    recording.events.erase(recording.events.begin() + 4, recording.events.begin() + 9);
    recording.marks[0].event = 4;
    add_allocation(4, EventKind::kAllocate);
    add_read({0}, {4});
    add_kernel({1, 4}, 100, UVMSIM_READ);
    add_allocation(5, EventKind::kAllocate);
    add_read({1, 4}, {5});
    add_allocation(4, EventKind::kFree);
    add_read({0}, {5});
    add_read({5}, {2, 3});
    for (std::uint32_t block = 6; block < 9; ++block) add_allocation(block, EventKind::kAllocate);
    add_read({2, 3}, {6, 7, 8});
    add_read({6, 7, 8}, {0, 1});
    for (std::uint32_t block = 5; block < 9; ++block) add_allocation(block, EventKind::kFree);
    add_mark("end");
  }

  // Adds a kernel of 100 ns that reads `read`, and reads and writes `written`.
  void add_read(const std::vector<std::uint32_t>& read, const std::vector<std::uint32_t>& written) {
    add_kernel(read, 100, UVMSIM_READ);
    Event& kernel = recording.events.back();
    for (const std::uint32_t block : written) {
      recording.touches.push_back(
          {pages_of(block), kBlockBytes, UVMSIM_READ | UVMSIM_WRITE, block});
      ++kernel.touch_count;
    }
  }
};

TEST_F(SmallModelTest, StateAndActivationsAreFoundWhereTheOptimizerHasTheFullestMoment) {
  const WhatIf trains(recording, "", copying_machine());
  EXPECT_EQ(trains.footprint().peak_bytes, 8 * kBlockBytes);
  const WhatIf::ByHand state = trains.by_hand("offload-optimizer");
  EXPECT_EQ(state.figures.failure, "it saves no memory") << "all of it is there at that moment";
  const Recording twice = repeated_step(recording, "", 2);
  EXPECT_EQ(offload_of(twice, "offload-optimizer").copies.size(), 2 * 2 * 2U);
  EXPECT_EQ(offload_of(twice, "offload-activations").copies.size(), 2 * 2U);
  const WhatIf::ByHand activations = trains.by_hand("offload-activations");
  EXPECT_EQ(activations.figures.failure, "it saves no memory");
}

TEST_F(WhatIfTest, AnActivationThatIsMovedByHandIsAwayBetweenForwardAndBackward) {
  recording.events.erase(recording.events.begin() + 2, recording.events.begin() + 4);
  recording.marks[0].event = 2;
  add_allocation(2, EventKind::kAllocate);
  add_kernel({2}, 100);
  add_allocation(3, EventKind::kAllocate);
  add_kernel({1, 3}, 100);
  add_allocation(3, EventKind::kFree);
  add_kernel({1, 2}, 100);
  add_allocation(2, EventKind::kFree);
  const WhatIf trains = what_if();
  EXPECT_EQ(trains.footprint().peak_bytes, 3 * kBlockBytes);
  const WhatIf::ByHand activations = trains.by_hand("offload-activations");
  EXPECT_EQ(activations.memory_bytes, 2 * kBlockBytes);
  EXPECT_EQ(activations.figures.step_ns, 300 + 2 * kCopyNs);
  EXPECT_EQ(activations.figures.copied_bytes, 2 * kBlockBytes);
}

}  // namespace
}  // namespace uvm::oversubscription
