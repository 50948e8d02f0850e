// When moves are sent: exact times on small orders, and rules that hold for any order.
#include "tools/oversubscription/move_timing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "tools/oversubscription/costly_choices.hpp"

namespace uvm::plan {
namespace {

constexpr std::uint64_t kBlockBytes = 100;
constexpr MoveCosts kByteANanosecond{.to_device_bytes_per_ns = 1, .to_host_bytes_per_ns = 1};

// Each number is a kernel of 100 ns that writes that block.
UseOrder writes(const std::vector<std::uint32_t>& blocks) {
  UseOrder order;
  for (const std::uint32_t block : blocks) {
    order.kernels.push_back({{block, kBlockBytes, true}});
    order.kernel_ns.push_back(100);
    order.block_count = std::max<std::size_t>(order.block_count, block + 1);
  }
  order.live_at_end.assign(order.block_count, kBlockBytes);
  return order;
}

TEST(MoveTimingTest, ABlockLeavesRightAfterItsLastUseAndAnotherArrivesAsSoonAsTheChunkIsFree) {
  const UseOrder order = writes({0, 1, 1, 1, 2});
  const MoveSchedule schedule = schedule_moves(order, {.chunks = 2}, FurthestUse());
  const MoveTiming timing = ahead_of_need(order, schedule, kByteANanosecond);
  // Block 0 arrives by 100, is used until 200, is away by 300. Block 2 arrives by 400, used at 500.
  const std::vector<TimedCall> expected = {{0, true, 0}, {1, true, 1}, {2, false, 2}, {2, true, 2}};
  EXPECT_EQ(timing.calls, expected);
  EXPECT_EQ(timing.chunk_from, (std::vector<std::uint32_t>{kFreeChunk, kFreeChunk, 2}));
  EXPECT_EQ(timing.predicted_ns, 600U);
}

TEST(MoveTimingTest, OnDemandEachMoveIsSentAtItsNeed) {
  const UseOrder order = writes({0, 1, 1, 1, 2});
  const MoveSchedule schedule = schedule_moves(order, {.chunks = 2}, FurthestUse());
  const std::vector<TimedCall> expected = {{0, true, 0}, {1, true, 1}, {2, false, 4}, {2, true, 4}};
  EXPECT_EQ(on_demand(schedule).calls, expected);
}

TEST(MoveTimingTest, AKernelWaitsForACopyThatCannotBeSooner) {
  // Every kernel needs the only chunk: a copy out and a copy in before kernels 1 to 3.
  const UseOrder order = writes({0, 1, 0, 1});
  const MoveSchedule schedule = schedule_moves(order, {.chunks = 1}, FurthestUse());
  const MoveTiming timing = ahead_of_need(order, schedule, kByteANanosecond);
  EXPECT_EQ(timing.predicted_ns, 100 + 4 * 100 + 3 * 200U);
}

TEST(MoveTimingTest, TheDriversOwnWorkRunsBesideCopies) {
  UseOrder order = writes({0});
  order.kernels[0] = {{0, kBlockBytes, true}, {1, kBlockBytes, true}};
  order.block_count = 2;
  const MoveSchedule schedule = schedule_moves(order, {.chunks = 2}, FurthestUse());
  MoveCosts costs = kByteANanosecond;
  costs.arrival_ns = 30;
  EXPECT_EQ(ahead_of_need(order, schedule, costs).predicted_ns, 100 + 100 + 30 + 100U);
}

TEST(MoveTimingTest, BothWaysAreUsedAtOnce) {
  // Blocks 0 and 1 leave for blocks 2 and 3. Block 2 arrives while block 1 leaves.
  const UseOrder order = writes({0, 1, 4, 4, 4, 4, 2, 3});
  const MoveSchedule schedule = schedule_moves(order, {.chunks = 3}, FurthestUse());
  const MoveTiming timing = ahead_of_need(order, schedule, kByteANanosecond);
  // Three copies bring blocks 0, 1 and 4 until 300 ns. Kernels hide all other copies.
  EXPECT_EQ(timing.predicted_ns, 900U);
}

TEST(MoveTimingTest, TheFastestPlanIsTakenAndOfEqualOnesTheSmallest) {
  const LeastRecentUse recent;
  const FurthestUse furthest;
  const std::array<const VictimChoice*, 2> choices = {&recent, &furthest};
  const UseOrder round = writes({0, 1, 2, 0, 1, 2, 0, 1, 2});
  // A block that was just used leaves too late for the next kernel, so more copies are faster here.
  const MoveSchedule longer = schedule_moves(round, {.chunks = 2}, recent);
  const MoveSchedule expected = schedule_moves(round, {.chunks = 2}, furthest);
  EXPECT_GT(longer.arriving_bytes, expected.arriving_bytes);
  EXPECT_LT(ahead_of_need(round, longer, kByteANanosecond).predicted_ns,
            ahead_of_need(round, expected, kByteANanosecond).predicted_ns);
  const TimedSchedule found = fastest(round, {.chunks = 2}, kByteANanosecond, choices);
  EXPECT_EQ(found.schedule.arriving_bytes, longer.arriving_bytes);
  // If copies take no time, more moves have no advantage.
  const TimedSchedule equal = fastest(round, {.chunks = 2}, MoveCosts{}, choices);
  EXPECT_EQ(equal.timing.predicted_ns, 900U);
  EXPECT_EQ(equal.schedule.arriving_bytes, expected.arriving_bytes);
}

// Runs the calls one after another, and reports every rule that they break.
class Device {
 public:
  Device(const UseOrder& order, const MoveSchedule& schedule, const MoveTiming& timing,
         std::size_t chunks)
      : order_(order), schedule_(schedule), timing_(timing), free_(chunks) {}

  void run() {
    std::size_t next = 0;
    for (std::size_t kernel = 0; kernel < order_.kernels.size(); ++kernel) {
      for (; next < timing_.calls.size() && timing_.calls[next].before <= kernel; ++next)
        apply(timing_.calls[next], kernel);
      for (const BlockUse& use : order_.kernels[kernel])
        EXPECT_TRUE(here_.contains(use.block)) << "kernel " << kernel << ", block " << use.block;
    }
    EXPECT_EQ(next, timing_.calls.size());
  }

 private:
  void apply(const TimedCall& call, std::size_t kernel) {
    const Move& move = schedule_.moves[call.move];
    if (!call.is_arrival) {
      EXPECT_GE(kernel, move.after) << "it leaves before its last use is over";
      EXPECT_EQ(here_.erase(move.victim), 1U);
      EXPECT_TRUE(given_.insert(call.move).second);
      return;
    }
    EXPECT_LE(kernel, move.need);
    EXPECT_TRUE(here_.insert(move.block).second);
    const std::uint32_t from = timing_.chunk_from[call.move];
    if (from == kFreeChunk) {
      ASSERT_GT(free_, 0U);
      --free_;
    } else {
      EXPECT_EQ(given_.erase(from), 1U) << "a chunk is taken twice, or before it is free";
    }
  }

  const UseOrder& order_;
  const MoveSchedule& schedule_;
  const MoveTiming& timing_;
  std::size_t free_;
  std::set<std::uint32_t> here_;
  std::set<std::uint32_t> given_;
};

UseOrder random_order(std::mt19937& random) {
  UseOrder order;
  order.block_count = 3 + random() % 12;
  order.live_at_end.assign(order.block_count, kBlockBytes);
  for (int kernel = 0; kernel < 40; ++kernel) {
    std::vector<BlockUse> uses;
    for (std::uint32_t block = 0; block < order.block_count; ++block) {
      if (uses.size() == 3 || random() % 4 != 0) continue;
      uses.push_back({block, random() % 4 == 0 ? 0 : kBlockBytes, random() % 2 == 0});
    }
    order.kernels.push_back(uses);
    order.kernel_ns.push_back(random() % 300);
  }
  return order;
}

TEST(MoveTimingTest, AnyOrderIsServedInTime) {
  std::mt19937 random(11);
  std::size_t ahead = 0;
  for (int instance = 0; instance < 400; ++instance) {
    SCOPED_TRACE(instance);
    const UseOrder order = random_order(random);
    const ScheduleOptions options{.chunks = 3 + random() % 5,
                                  .keeps_host_copies = random() % 2 == 0};
    const MoveSchedule schedule = schedule_moves(order, options, CheapestAbsence(kBlockBytes));
    MoveCosts costs = kByteANanosecond;
    costs.arrival_ns = random() % 50;
    costs.leaving_ns = random() % 50;
    const MoveTiming timing = ahead_of_need(order, schedule, costs);
    Device(order, schedule, timing, options.chunks).run();
    Device(order, schedule, on_demand(schedule), options.chunks).run();
    std::uint64_t kernels_ns = 0;
    for (const std::uint64_t duration_ns : order.kernel_ns) kernels_ns += duration_ns;
    EXPECT_GE(timing.predicted_ns, kernels_ns);
    EXPECT_GE(timing.predicted_ns, schedule.arriving_bytes);
    for (const TimedCall& call : timing.calls)
      ahead += call.before < schedule.moves[call.move].need ? 1 : 0;
  }
  EXPECT_GT(ahead, 1000U);
}

}  // namespace
}  // namespace uvm::plan
