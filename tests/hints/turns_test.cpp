#include "hints/sharing/turns.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/support/sanitized.hpp"

namespace uvm::sharing {
namespace {

constexpr std::uint64_t kRoom = 100;
constexpr std::uint64_t kTurn = 1000;
constexpr std::uint64_t kIdle = 50;

class TurnsTest : public ::testing::Test {
 protected:
  std::size_t join(std::uint64_t bytes) {
    const std::size_t program = turns.join().value();
    turns.set_held_bytes(program, bytes);
    return program;
  }
  std::uint64_t holder() const { return table.holder; }

  TurnTable table{};
  Turns turns{table, {kRoom, kTurn, kIdle}};
};

TEST_F(TurnsTest, WhileAllFitsEverybodyRuns) {
  const std::size_t first = join(60);
  const std::size_t second = join(40);
  EXPECT_FALSE(turns.is_crowded());
  EXPECT_EQ(turns.before_kernel(first, 1), Answer::kRuns);
  EXPECT_EQ(turns.before_kernel(second, 1), Answer::kRuns);
  EXPECT_TRUE(turns.take(second, 2));
  EXPECT_EQ(table.programs[first].turns + table.programs[second].turns, 0u);
}

TEST_F(TurnsTest, TheTurnsOfAProgramAreCountedFromItsStart) {
  const std::size_t first = join(60);
  const std::size_t second = join(60);
  ASSERT_TRUE(turns.take(first, 1));
  EXPECT_FALSE(turns.take(second, 2));
  turns.yield(first, 3);
  EXPECT_EQ(table.programs[first].turns, 1u);
  EXPECT_EQ(table.programs[second].turns, 1u);
  turns.leave(first);
  EXPECT_EQ(join(60), first);
  EXPECT_EQ(table.programs[first].turns, 0u);
}

TEST_F(TurnsTest, AProgramAloneIsNeverCrowded) {
  const std::size_t only = join(500);
  EXPECT_EQ(turns.before_kernel(only, 1), Answer::kRuns);
}

TEST_F(TurnsTest, ATurnLastsAtLeastItsTimeAndPassesOnlyWhereOthersWait) {
  const std::size_t first = join(60);
  const std::size_t second = join(60);
  EXPECT_EQ(turns.before_kernel(first, 10), Answer::kWaits);
  ASSERT_TRUE(turns.take(first, 10));
  EXPECT_EQ(turns.before_kernel(first, 10 + 5 * kTurn), Answer::kRuns);
  EXPECT_EQ(turns.before_kernel(second, 10 + 5 * kTurn), Answer::kWaits);
  EXPECT_FALSE(turns.take(second, 10 + 5 * kTurn));
  EXPECT_EQ(turns.before_kernel(first, 10 + 5 * kTurn), Answer::kYields);
  turns.yield(first, 10 + 5 * kTurn);
  EXPECT_EQ(holder(), second + 1);
  EXPECT_EQ(turns.before_kernel(second, 10 + 6 * kTurn - 1), Answer::kRuns);
  EXPECT_FALSE(turns.take(first, 10 + 6 * kTurn - 1));
  EXPECT_EQ(turns.before_kernel(second, 10 + 6 * kTurn - 1), Answer::kRuns);
  EXPECT_EQ(turns.before_kernel(second, 10 + 6 * kTurn), Answer::kYields);
}

TEST_F(TurnsTest, AnIdleHolderLosesItsTurnToTheOneThatHasWaitedLongest) {
  const std::size_t idle = join(60);
  const std::size_t late = join(60);
  const std::size_t early = join(60);
  ASSERT_TRUE(turns.take(idle, 100));
  EXPECT_FALSE(turns.take(early, 110));
  EXPECT_FALSE(turns.take(late, 120));
  EXPECT_EQ(turns.before_kernel(idle, 130), Answer::kRuns);
  EXPECT_FALSE(turns.take(early, 130 + kIdle));
  EXPECT_FALSE(turns.take(late, 131 + kIdle));
  EXPECT_TRUE(turns.take(early, 131 + kIdle));
  EXPECT_EQ(turns.before_kernel(idle, 132 + kIdle), Answer::kWaits);
}

// A stopped program could otherwise stay the one that has waited longest, and block all others.
TEST_F(TurnsTest, AWaiterThatTakesNoTurnDelaysTheNextByItsIdleTime) {
  const std::size_t holder_program = join(60);
  const std::size_t stopped = join(60);
  const std::size_t next = join(60);
  ASSERT_TRUE(turns.take(holder_program, 1));
  EXPECT_FALSE(turns.take(stopped, 2));
  EXPECT_FALSE(turns.take(next, 3));
  turns.leave(holder_program);
  EXPECT_FALSE(turns.take(next, 10));
  EXPECT_EQ(holder(), stopped + 1);
  EXPECT_FALSE(turns.take(next, 10 + kIdle));
  EXPECT_TRUE(turns.take(next, 11 + kIdle));
  EXPECT_FALSE(turns.take(stopped, 12 + kIdle)) << "it goes on, and waits again";
}

TEST_F(TurnsTest, ATurnIsSeizedWhateverTheTableSays) {
  const std::size_t program = join(60);
  join(60);
  table.holder = 77;
  table.last_kernel_ns = ~std::uint64_t{0};
  EXPECT_FALSE(turns.take(program, 1'000'000));
  turns.seize(program, 1'000'000);
  EXPECT_EQ(turns.before_kernel(program, 1'000'001), Answer::kRuns);
}

TEST_F(TurnsTest, ATurnThatSomebodyElseHasCannotBeYielded) {
  const std::size_t first = join(60);
  const std::size_t second = join(60);
  ASSERT_TRUE(turns.take(first, 1));
  turns.yield(second, 2);
  EXPECT_EQ(holder(), first + 1);
}

TEST_F(TurnsTest, AProgramThatLeavesTakesItsTurnAndItsBytesWithIt) {
  const std::size_t first = join(60);
  const std::size_t second = join(60);
  const std::size_t third = join(60);
  ASSERT_TRUE(turns.take(first, 1));
  EXPECT_FALSE(turns.take(second, 2));
  turns.leave(first);
  EXPECT_EQ(holder(), 0u);
  EXPECT_TRUE(turns.is_crowded());
  EXPECT_TRUE(turns.take(second, 3));
  turns.leave(third);
  EXPECT_FALSE(turns.is_crowded());
  EXPECT_EQ(turns.before_kernel(second, 4), Answer::kRuns);
}

TEST_F(TurnsTest, TheTableHasRoomForSoManyAndNoMore) {
  for (std::size_t i = 0; i < kMostPrograms; ++i) EXPECT_TRUE(turns.join());
  EXPECT_FALSE(turns.join());
  turns.leave(7);
  EXPECT_EQ(turns.join(), 7u);
}

TEST(TurnRulesTest, ChangesTakeATwentiethOfTheTime) {
  const TurnRules large = TurnRules::for_device(std::size_t{48} << 30);
  EXPECT_NEAR(static_cast<double>(large.idle_ns), 2.147e9, 1e6);
  EXPECT_EQ(large.turn_ns, 20 * large.idle_ns);
  EXPECT_EQ(TurnRules::for_device(std::size_t{1} << 20).idle_ns, 5'000'000u);
  EXPECT_EQ(TurnRules::for_device(std::size_t{1} << 40).idle_ns, 3'000'000'000u);
}

TEST(TurnRulesTest, AWaitLastsForTheLongestTurnsOfAllPrograms) {
  const TurnRules small = TurnRules::for_device(std::size_t{1} << 20);
  EXPECT_EQ(small.longest_wait_ns(3), 3 * 66'000'000'000u);
}

// Programs launch, sleep, leave and join in any order. The test itself records which programs wait.
TEST_F(TurnsTest, InAnyOrderOneProgramRunsAndNobodyWaitsForever) {
  std::mt19937 random(1);
  std::map<std::size_t, std::uint64_t> waiting;  // by program: waits since
  std::vector<std::size_t> here;
  std::uint64_t now = 1;
  std::uint64_t longest = 0;
  for (int i = 0; i < 4; ++i) here.push_back(join(60));
  for (int event = 0; event < testing::steps(200'000, 40'000); ++event) {
    now += random() % 20;
    if (random() % 2000 == 0 && here.size() > 2) {
      const std::size_t at = random() % here.size();
      turns.leave(here[at]);
      waiting.erase(here[at]);
      here.erase(here.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (random() % 1000 == 0 && here.size() < 6) here.push_back(join(60));
    ASSERT_TRUE(turns.is_crowded());
    const std::size_t program = here[random() % here.size()];
    const Answer answer = turns.before_kernel(program, now);
    if (answer == Answer::kRuns) {
      ASSERT_EQ(holder(), program + 1);
      waiting.erase(program);
      continue;
    }
    if (answer == Answer::kYields) {
      ASSERT_EQ(holder(), program + 1);
      turns.yield(program, now);
      ASSERT_NE(holder(), program + 1);
    }
    const std::uint64_t since = waiting.try_emplace(program, now).first->second;
    if (turns.take(program, now)) {
      ASSERT_EQ(holder(), program + 1);
      waiting.erase(program);
    }
    longest = std::max(longest, now - since);
  }
  // Each of five other programs has a turn, and may be idle or ask late before it yields.
  EXPECT_LT(longest, 5 * (kTurn + 20 * kIdle));
}

}  // namespace
}  // namespace uvm::sharing
