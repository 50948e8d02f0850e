// Moves for small orders of uses: exact moves, and comparisons with the best order of evictions.
#include "tools/oversubscription/move_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "tools/oversubscription/costly_choices.hpp"

namespace uvm::plan {
namespace {

constexpr std::uint64_t kBytes = 100;

// Each number is a kernel that reads that block.
UseOrder reads(const std::vector<std::uint32_t>& blocks) {
  UseOrder order;
  for (const std::uint32_t block : blocks) {
    order.kernels.push_back({{block, kBytes, false}});
    order.block_count = std::max<std::size_t>(order.block_count, block + 1);
  }
  order.live_at_end.assign(order.block_count, kBytes);
  return order;
}

TEST(MoveScheduleTest, BlocksThatFitArriveOnceAndNoneLeaves) {
  const MoveSchedule schedule = schedule_moves(reads({0, 1, 0, 1}), {.chunks = 2}, FurthestUse());
  ASSERT_EQ(schedule.moves.size(), 2U);
  EXPECT_EQ(schedule.arriving_bytes, 2 * kBytes);
  EXPECT_EQ(schedule.leaving_bytes, 0U);
  EXPECT_EQ(schedule.moves[1].leaving, Leaving::kNothing);
  EXPECT_EQ(schedule.moves[1].after, 0U);
  EXPECT_EQ(schedule.moves[1].need, 1U);
}

TEST(MoveScheduleTest, TheBlockLeavesWhoseNextUseIsFurthestAsSoonAsItsLastUseIsOver) {
  const MoveSchedule schedule =
      schedule_moves(reads({0, 1, 1, 2, 1, 0}), {.chunks = 2}, FurthestUse());
  ASSERT_EQ(schedule.moves.size(), 4U);
  EXPECT_EQ(schedule.moves[2].block, 2U);
  EXPECT_EQ(schedule.moves[2].victim, 0U);
  EXPECT_EQ(schedule.moves[2].after, 1U);
  EXPECT_EQ(schedule.moves[2].need, 3U);
  EXPECT_EQ(schedule.moves[2].leaving, Leaving::kCopied);
  EXPECT_EQ(schedule.moves[3].victim, 2U) << "of blocks that are not used again the older one goes";
  EXPECT_EQ(schedule.moves[3].after, 4U);
  EXPECT_EQ(schedule.leaving_bytes, 2 * kBytes);
}

TEST(MoveScheduleTest, LeastRecentUseLooksBackAlone) {
  const UseOrder round = reads({0, 1, 2, 0, 1, 2});
  EXPECT_EQ(schedule_moves(round, {.chunks = 2}, LeastRecentUse()).moves.size(), 6U);
  EXPECT_EQ(schedule_moves(round, {.chunks = 2}, FurthestUse()).moves.size(), 4U);
}

TEST(MoveScheduleTest, ADeadBlockLeavesFirstAndNothingIsCopied) {
  UseOrder order = reads({0, 1, 2, 0, 1});
  order.kernels[3][0].live_bytes = 0;
  const MoveSchedule schedule = schedule_moves(order, {.chunks = 2}, FurthestUse());
  EXPECT_EQ(schedule.moves[2].victim, 0U);
  EXPECT_EQ(schedule.moves[2].leaving, Leaving::kDropped);
  EXPECT_EQ(schedule.moves[2].leaving_bytes, 0U);
  EXPECT_EQ(schedule.moves[3].block, 0U);
  EXPECT_EQ(schedule.moves[3].arriving_bytes, 0U);
}

TEST(MoveScheduleTest, OfBlocksThatCostUnequallyTheOneLeavesThatIsAwayLongestForItsCost) {
  UseOrder order = reads({0, 1, 2, 3, 3, 0, 1, 2});
  order.kernels[5][0].live_bytes = 10;
  const ScheduleOptions options{.chunks = 3};
  // Blocks 0, 1 and 2 are away for 2, 3 and 4 kernels, and cost 20, 200 and 200 bytes. With 1000
  // bytes more for each move, the costs are nearly equal.
  EXPECT_EQ(schedule_moves(order, options, FurthestUse()).moves[3].victim, 2U);
  EXPECT_EQ(schedule_moves(order, options, CheapestAbsence(0)).moves[3].victim, 0U);
  EXPECT_EQ(schedule_moves(order, options, CheapestAbsence(1000)).moves[3].victim, 2U);
  order.kernels[6][0].live_bytes = 0;
  EXPECT_EQ(schedule_moves(order, options, CheapestAbsence(0)).moves[3].victim, 1U);
}

TEST(MoveScheduleTest, WhatIsOnlyReadIsNotCopiedBackWhereTheHostKeepsIt) {
  UseOrder order = reads({0, 1, 0, 1, 0});
  const ScheduleOptions options{.chunks = 1, .keeps_host_copies = true};
  EXPECT_EQ(schedule_moves(order, {.chunks = 1}, FurthestUse()).leaving_bytes, 4 * kBytes);
  MoveSchedule schedule = schedule_moves(order, options, FurthestUse());
  EXPECT_EQ(schedule.leaving_bytes, 0U);
  EXPECT_EQ(schedule.moves[1].leaving, Leaving::kUnchanged);
  EXPECT_TRUE(schedule.moves[0].keeps_host_copy);
  order.kernels[0][0].writes = true;
  schedule = schedule_moves(order, options, FurthestUse());
  EXPECT_EQ(schedule.leaving_bytes, kBytes) << "only the written block, and only once";
  EXPECT_FALSE(schedule.moves[0].keeps_host_copy);
  EXPECT_TRUE(schedule.moves[2].keeps_host_copy);
}

TEST(MoveScheduleTest, AnAbsenceIsMeasuredInTimeOnRequest) {
  // Blocks 0, 1 and 2 are away for 2, 3 and 4 kernels, and the last kernels are short. Block 0
  // costs a third of the others.
  UseOrder order = reads({0, 1, 2, 3, 3, 0, 1, 2});
  order.kernels[5][0].live_bytes = 40;
  order.kernel_ns = {1, 1, 1, 100, 1, 1, 1, 1};
  const ScheduleOptions options{.chunks = 3};
  using Unit = CheapestAbsence::Unit;
  EXPECT_EQ(schedule_moves(order, options, CheapestAbsence(40)).moves[3].victim, 0U);
  order.kernel_ns = {1, 1, 1, 1, 1, 1000, 1, 1};
  EXPECT_EQ(schedule_moves(order, options, CheapestAbsence(40, Unit::kTime)).moves[3].victim, 2U);
}

TEST(MoveScheduleTest, ABlockThatWasJustUsedStaysWhereAnotherHasRestedLongEnough) {
  UseOrder order = reads({0, 1, 2, 3, 0, 1, 2, 3});
  order.kernel_ns.assign(8, 100);
  const ScheduleOptions options{.chunks = 3};
  // Before kernel 3, blocks 0, 1 and 2 have rested for 200, 100 and 0 ns.
  EXPECT_EQ(schedule_moves(order, options, FurthestRested(0)).moves[3].victim, 2U);
  EXPECT_EQ(schedule_moves(order, options, FurthestRested(100)).moves[3].victim, 1U);
  EXPECT_EQ(schedule_moves(order, options, FurthestRested(200)).moves[3].victim, 0U);
  EXPECT_EQ(schedule_moves(order, options, FurthestRested(300)).moves[3].victim, 2U);
}

TEST(MoveScheduleTest, UnchangedFirstCopiesNothingBackWhileABlockIsOnlyRead) {
  UseOrder order = reads({0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3});
  for (const std::size_t kernel : {0, 4, 8}) order.kernels[kernel][0].writes = true;
  const ScheduleOptions options{.chunks = 2, .keeps_host_copies = true};
  EXPECT_EQ(schedule_moves(order, options, UnchangedFirst()).leaving_bytes, 0U);
  EXPECT_NE(schedule_moves(order, options, LeastRecentUse()).leaving_bytes, 0U);
}

TEST(MoveScheduleTest, AKernelThatUsesMoreThanThereIsIsNamed) {
  UseOrder order = reads({0, 1, 2});
  order.kernels.push_back({{0, kBytes, true}, {1, kBytes, true}, {2, kBytes, true}});
  const MoveSchedule schedule = schedule_moves(order, {.chunks = 2}, FurthestUse());
  EXPECT_EQ(schedule.too_large, std::vector<std::size_t>{3});
}

TEST(MoveScheduleTest, ABlockComesBackNoSoonerThanItHasLeft) {
  const MoveSchedule schedule =
      schedule_moves(reads({1, 0, 0, 2, 0, 1}), {.chunks = 2}, LeastRecentUse());
  std::size_t returns = 0;
  for (std::size_t later = 0; later < schedule.moves.size(); ++later) {
    for (std::size_t sooner = 0; sooner < later; ++sooner) {
      const Move& left = schedule.moves[sooner];
      if (left.leaving == Leaving::kNothing || left.victim != schedule.moves[later].block) continue;
      EXPECT_GE(schedule.moves[later].after, left.after);
      ++returns;
    }
  }
  EXPECT_EQ(returns, 1U);
}

// Returns the fewest bytes over every choice of evictions, with arrivals on demand: follows the
// sets of blocks on the device, with the cheapest way to each. Shares no code with the scheduler.
std::uint64_t fewest_bytes(const UseOrder& order, std::size_t chunks) {
  const auto live_at = [&](std::uint32_t block, std::size_t kernel) {
    for (; kernel < order.kernels.size(); ++kernel)
      for (const BlockUse& use : order.kernels[kernel])
        if (use.block == block) return use.live_bytes;
    return order.live_at_end[block];
  };
  std::map<unsigned, std::uint64_t> ways{{0U, 0U}};
  for (std::size_t kernel = 0; kernel < order.kernels.size(); ++kernel) {
    unsigned needed = 0;
    for (const BlockUse& use : order.kernels[kernel]) needed |= 1U << use.block;
    std::map<unsigned, std::uint64_t> next;
    for (const auto& [here, bytes] : ways) {
      std::uint64_t arriving = 0;
      for (const BlockUse& use : order.kernels[kernel])
        if ((here & (1U << use.block)) == 0) arriving += use.live_bytes;
      const unsigned all = here | needed;
      for (unsigned kept = 0; kept < 1U << order.block_count; ++kept) {
        if ((kept & needed) != needed || (kept & ~all) != 0) continue;
        if (static_cast<std::size_t>(std::popcount(kept)) > chunks) continue;
        std::uint64_t leaving = 0;
        for (std::uint32_t block = 0; block < order.block_count; ++block)
          if ((all & ~kept & (1U << block)) != 0) leaving += live_at(block, kernel);
        const auto [found, added] = next.try_emplace(kept, bytes + arriving + leaving);
        if (!added) found->second = std::min(found->second, bytes + arriving + leaving);
      }
    }
    ways = std::move(next);
  }
  return std::ranges::min_element(ways, {}, [](const auto& way) { return way.second; })->second;
}

struct Totals {
  std::uint64_t planned = 0;
  std::uint64_t fewest = 0;
  std::size_t with_moves = 0;
};

Totals totals(bool has_dead_blocks) {
  std::mt19937 random(7);
  Totals result;
  for (int instance = 0; instance < 300; ++instance) {
    UseOrder order;
    order.block_count = 5;
    order.live_at_end.assign(order.block_count, kBytes);
    const std::size_t chunks = 2 + random() % 3;
    for (int kernel = 0; kernel < 9; ++kernel) {
      std::vector<BlockUse> uses;
      for (std::uint32_t block = 0; block < order.block_count; ++block) {
        if (uses.size() == 2 || random() % 3 != 0) continue;
        const bool is_dead = has_dead_blocks && random() % 3 == 0;
        uses.push_back({block, is_dead ? 0 : kBytes, true});
      }
      order.kernels.push_back(uses);
    }
    const MoveSchedule schedule = schedule_moves(order, {.chunks = chunks}, FurthestUse());
    const std::uint64_t planned = schedule.arriving_bytes + schedule.leaving_bytes;
    const std::uint64_t fewest = fewest_bytes(order, chunks);
    EXPECT_TRUE(schedule.too_large.empty());
    EXPECT_GE(planned, fewest);
    if (!has_dead_blocks) {
      EXPECT_EQ(planned, fewest) << "instance " << instance;
    }
    result.planned += planned;
    result.fewest += fewest;
    result.with_moves += schedule.leaving_bytes != 0 ? 1 : 0;
  }
  return result;
}

TEST(MoveScheduleTest, NoOrderOfEvictionsMovesLessWhereEveryBlockIsLive) {
  EXPECT_GT(totals(false).with_moves, 200U);
}

TEST(MoveScheduleTest, WithDeadBlocksItIsNearTheFewest) {
  const Totals found = totals(true);
  EXPECT_GT(found.with_moves, 100U);
  EXPECT_LE(static_cast<double>(found.planned), 1.05 * static_cast<double>(found.fewest));
}

}  // namespace
}  // namespace uvm::plan
