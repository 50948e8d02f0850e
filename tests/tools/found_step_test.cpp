// Handwritten recordings in which repeated kernels reveal the step.
#include "tools/oversubscription/found_step.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/message_of.hpp"
#include "tests/tools/made_recording.hpp"
#include "tools/oversubscription/recorded_order.hpp"
#include "tools/oversubscription/repeated_step.hpp"

namespace uvm::oversubscription {
namespace {

using testing::MadeRecording;
using testing::message_of;
using uvmsim::kBlockBytes;
using uvmsim::replay::Event;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;

constexpr std::size_t kStepKernels = 9;

// Blocks 0 to 2 stay, block 3 exists for a part of each step. Step n has kernels of n ns.
class FoundStepTest : public ::testing::Test, protected MadeRecording {
 protected:
  FoundStepTest() : MadeRecording(4) {
    add_allocation(3, EventKind::kFree);
    add_kernel({2, 1, 0}, 1000);  // before all steps
  }

  void add_steps(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t step = first; step <= last; ++step) {
      add_kernel({0}, step);
      add_allocation(3, EventKind::kAllocate);
      for (std::uint32_t kernel = 0; kernel < kStepKernels - 2; ++kernel)
        add_kernel({kernel % 3, 3}, step);
      add_allocation(3, EventKind::kFree);
      add_kernel({1, 2}, step);
    }
  }

  // Returns the durations of the step's kernels.
  static std::vector<std::uint64_t> step_of(const Recording& found) {
    EXPECT_EQ(found.marks.size(), 2U);
    std::vector<std::uint64_t> result;
    for (std::size_t index = found.marks.at(0).event; index < found.marks.at(1).event; ++index)
      if (is_kernel(found.events[index])) result.push_back(found.events[index].amount);
    return result;
  }
};

TEST_F(FoundStepTest, ItIsTheLastOneAndBeginsWhereTheLeastMemoryIsInUse) {
  add_steps(1, 6);
  const Recording found = with_found_step(recording);
  const std::vector<std::uint64_t> step = step_of(found);
  EXPECT_EQ(step.size(), kStepKernels);
  EXPECT_EQ(step.back(), 6U);
  EXPECT_GE(step.front(), 5U);
  const std::vector<std::uint64_t> bytes = live_bytes(found);
  for (const auto& mark : found.marks) EXPECT_EQ(bytes[mark.event], 3 * kBlockBytes);
  EXPECT_EQ(found.events.size(), recording.events.size() + 1) << "two marks, less the one before";
  EXPECT_NO_THROW(repeated_step(found, "", 3));
}

TEST_F(FoundStepTest, OtherKernelsAtTheEndAndBetweenStepsAreNoPartOfIt) {
  add_steps(1, 3);
  add_kernel({3}, 2000);
  add_steps(4, 7);
  for (const std::uint32_t block : {2, 0, 2, 1, 1}) add_kernel({block}, 3000);
  const std::vector<std::uint64_t> step = step_of(with_found_step(recording));
  EXPECT_EQ(step.size(), kStepKernels);
  EXPECT_TRUE(std::ranges::all_of(step, [](std::uint64_t each) { return each <= 7; }));
}

TEST_F(FoundStepTest, TheMemoryThatTheProgramsEndFreesIsLiveInTheStep) {
  add_steps(1, 6);
  for (const std::uint32_t block : {0, 1, 2}) add_allocation(block, EventKind::kFree);
  const Recording found = with_found_step(recording);
  const std::vector<std::uint64_t> bytes = live_bytes(found);
  for (const auto& mark : found.marks) EXPECT_EQ(bytes[mark.event], 3 * kBlockBytes);
  for (std::size_t index = found.marks[0].event; index < found.marks[1].event; ++index) {
    const Event& event = found.events[index];
    EXPECT_TRUE(event.kind != EventKind::kFree || event.block == 3) << "block " << event.block;
  }
}

TEST_F(FoundStepTest, WhatRepeatsNothingHasNone) {
  std::mt19937 random(7);
  for (std::size_t kernel = 0; kernel < 200; ++kernel) {
    std::vector<std::uint32_t> blocks{0, 1, 2};
    std::ranges::shuffle(blocks, random);
    blocks.resize(1 + random() % 3);
    add_kernel(blocks, 10);
  }
  EXPECT_NE(message_of([&] { with_found_step(recording); }).find("its 201 kernels"),
            std::string::npos);
  recording.events.clear();
  EXPECT_NE(message_of([&] { with_found_step(recording); }).find("its 0 kernels"),
            std::string::npos);
}

}  // namespace
}  // namespace uvm::oversubscription
