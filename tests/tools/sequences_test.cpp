#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "../../bench/allocators/sequences.hpp"

namespace uvm::bench {
namespace {

using Request = std::tuple<OperationKind, std::uint64_t, std::uint16_t>;  // kind, bytes, stream

std::vector<Request> requests_in_step(const OperationSequence& sequence, std::size_t step) {
  const std::size_t begin = sequence.step_begins[step];
  const std::size_t end = step + 1 < sequence.step_begins.size() ? sequence.step_begins[step + 1]
                                                                 : sequence.operations.size();
  std::vector<Request> requests;
  for (std::size_t i = begin; i < end; ++i) {
    const Operation& operation = sequence.operations[i];
    requests.emplace_back(operation.kind, operation.size_bytes, operation.stream);
  }
  return requests;
}

// Returns the sorted sizes of the blocks that are live after the last operation. A free of a block
// that is not live, or with another size, fails the test.
std::vector<std::uint64_t> live_at_end(const OperationSequence& sequence) {
  std::map<std::uint32_t, std::uint64_t> live;
  for (const Operation& operation : sequence.operations) {
    if (operation.kind == OperationKind::kAllocate) {
      EXPECT_TRUE(live.emplace(operation.slot, operation.size_bytes).second) << operation.slot;
    } else {
      EXPECT_EQ(live[operation.slot], operation.size_bytes);
      live.erase(operation.slot);
    }
    EXPECT_LT(operation.slot, sequence.slots);
  }
  std::vector<std::uint64_t> sizes;
  for (const auto& [slot, size_bytes] : live) sizes.push_back(size_bytes);
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

// A parameter, and from the first step on its gradient, which the next step frees.
OperationSequence training() {
  OperationSequence sequence;
  sequence.allocate(0, 1000);
  sequence.begin_step();
  sequence.allocate(1, 300);
  sequence.allocate(2, 1000);
  sequence.free(1);
  sequence.begin_step();
  sequence.allocate(3, 300, 1);
  sequence.free(2);
  sequence.allocate(4, 1000);
  sequence.free(3);
  return sequence;
}

TEST(RepeatStepsTest, RepeatedStepsAskForTheSameAndLeaveTheSame) {
  OperationSequence sequence = training();
  const std::vector<Request> step = requests_in_step(sequence, 1);
  const std::vector<std::uint64_t> left = live_at_end(sequence);
  const std::uint64_t peak = sequence.peak_live_bytes();
  repeat_steps(sequence, 1, 3);
  ASSERT_EQ(sequence.step_begins.size(), 5u);
  for (std::size_t i = 2; i < 5; ++i) EXPECT_EQ(requests_in_step(sequence, i), step) << i;
  EXPECT_EQ(live_at_end(sequence), left);
  EXPECT_EQ(sequence.peak_live_bytes(), peak);
}

TEST(RandomBeginningTest, BlocksAreAddedToTheFirstStepAndStay) {
  const OperationSequence sequence = training();
  std::set<std::size_t> counts;
  bool any_inside = false;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const OperationSequence other = with_random_beginning(sequence, seed);
    const std::size_t more = other.operations.size() - sequence.operations.size();
    counts.insert(more);
    EXPECT_EQ(other.slots, sequence.slots + more);
    ASSERT_EQ(other.step_begins.size(), sequence.step_begins.size());
    for (std::size_t step = 1; step < other.step_begins.size(); ++step) {
      EXPECT_EQ(other.step_begins[step], sequence.step_begins[step] + more) << "all in the first";
      EXPECT_EQ(requests_in_step(other, step), requests_in_step(sequence, step));
    }
    EXPECT_EQ(live_at_end(other).size(), live_at_end(sequence).size() + more);
    std::uint64_t added_bytes = 0;
    for (const Operation& operation : other.operations) {
      if (operation.slot < sequence.slots) continue;
      EXPECT_EQ(operation.kind, OperationKind::kAllocate);
      EXPECT_GE(operation.size_bytes, 512u);
      EXPECT_LE(operation.size_bytes, 8u << 20);
      added_bytes += operation.size_bytes;
    }
    EXPECT_EQ(other.peak_live_bytes(), sequence.peak_live_bytes() + added_bytes);
    any_inside |= other.operations[more - 1].slot < sequence.slots;
    const OperationSequence again = with_random_beginning(sequence, seed);
    EXPECT_EQ(again.peak_live_bytes(), other.peak_live_bytes()) << "the same for a seed";
  }
  EXPECT_EQ(counts, (std::set<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(any_inside);
}

// The block that a step frees first is the block that the step before left first.
TEST(RepeatStepsTest, WhatAStepFreesIsWhatTheOneBeforeLeftOldestFirst) {
  OperationSequence sequence;
  sequence.allocate(0, 512);
  sequence.allocate(1, 512);
  sequence.begin_step();
  sequence.free(0);
  sequence.allocate(0, 512);
  sequence.free(1);
  sequence.allocate(1, 512);
  repeat_steps(sequence, 0, 2);
  for (std::size_t at = 6; at < sequence.operations.size(); at += 2) {
    const Operation& freed = sequence.operations[at];
    ASSERT_EQ(freed.kind, OperationKind::kFree);
    const Operation& one_step_before = sequence.operations[at - 3];
    EXPECT_EQ(freed.slot, one_step_before.slot);
  }
  EXPECT_EQ(live_at_end(sequence), (std::vector<std::uint64_t>{512, 512}));
}

TEST(RepeatStepsTest, WhereAStepLeavesOtherBlocksThanItFoundTheNextBeginsWithWhatMakesUpForIt) {
  OperationSequence sequence;
  sequence.allocate(0, 100);
  sequence.begin_step();
  sequence.free(0);
  sequence.allocate(1, 200);
  repeat_steps(sequence, 0, 2);
  const std::vector<Request> made_up = {{OperationKind::kFree, 200, 0},
                                        {OperationKind::kAllocate, 100, 0},
                                        {OperationKind::kFree, 100, 0},
                                        {OperationKind::kAllocate, 200, 0}};
  EXPECT_EQ(requests_in_step(sequence, 1), made_up);
  EXPECT_EQ(requests_in_step(sequence, 2), made_up);
  EXPECT_EQ(live_at_end(sequence), std::vector<std::uint64_t>{200});
}

TEST(RepeatStepsTest, SeveralStepsAreRepeatedInTurn) {
  OperationSequence sequence = training();
  const std::vector<Request> first = requests_in_step(sequence, 0);
  const std::vector<Request> second = requests_in_step(sequence, 1);
  repeat_steps(sequence, 0, 2);
  ASSERT_EQ(sequence.step_begins.size(), 6u);
  // The first step began without a gradient, so its repetition begins with the free of a gradient.
  std::vector<Request> repeated = {{OperationKind::kFree, 1000, 0}};
  repeated.insert(repeated.end(), first.begin(), first.end());
  for (std::size_t i : {2u, 4u}) EXPECT_EQ(requests_in_step(sequence, i), repeated) << i;
  for (std::size_t i : {3u, 5u}) EXPECT_EQ(requests_in_step(sequence, i), second) << i;
}

}  // namespace
}  // namespace uvm::bench
