#include "hints/oversubscription/plan_judge.hpp"

#include <gtest/gtest.h>

#include "hints/oversubscription/policy.hpp"

namespace uvm {
namespace {

using live::PlanJudge;
using std::chrono::milliseconds;

constexpr std::uint64_t kStep = 100;  // kernels
constexpr std::uint64_t kChunks = 64;

struct JudgedProgram {
  JudgedProgram() { judge.kernel_added(kStep, 0, 0, kChunks); }

  // Runs one step, in which the plan and `lru` move so many pages a kernel, and tells its time.
  void step(std::uint64_t moved_of_plan, std::uint64_t of_lru, milliseconds time) {
    const bool was_trusted = judge.trusts_plan();
    for (std::uint64_t i = 0; i < kStep; ++i) {
      moved += judge.trusts_plan() ? moved_of_plan : of_lru;
      moved_by_lru += of_lru;
      judge.kernel_added(kStep, moved, moved_by_lru, kChunks);
    }
    if (was_trusted == judge.trusts_plan()) judge.step_took({kStep, 0, time});
  }

  PlanJudge judge;
  std::uint64_t moved = 0;
  std::uint64_t moved_by_lru = 0;
};

TEST(PlanJudgeTest, AStepOfLruIsTimedFirst) {
  JudgedProgram program;
  EXPECT_FALSE(program.judge.trusts_plan());
  program.step(0, 1, milliseconds(10));
  program.step(0, 1, milliseconds(10));
  EXPECT_TRUE(program.judge.trusts_plan());
}

TEST(PlanJudgeTest, EachStepIsTimedOnce) {
  JudgedProgram program;
  for (int step = 0; step < 3; ++step) program.step(0, 1, milliseconds(10));
  EXPECT_TRUE(program.judge.trusts_plan());
  program.judge.kernel_added(3 * kStep, program.moved, program.moved_by_lru, kChunks);
  EXPECT_FALSE(program.judge.trusts_plan()) << "another step";
  for (std::uint64_t i = 0; i < 6 * kStep; ++i)
    program.judge.kernel_added(3 * kStep, program.moved, program.moved_by_lru, kChunks);
  EXPECT_TRUE(program.judge.trusts_plan()) << "without times";
  program.judge.kernel_added(kStep, program.moved, program.moved_by_lru, kChunks);
  EXPECT_TRUE(program.judge.trusts_plan());
}

TEST(PlanJudgeTest, AStepThatIsLostSoonAndMovesMoreMakesTheNextOneWaitLonger) {
  for (const std::uint64_t moved_more : {0, 1}) {
    PlanJudge judge;
    std::uint64_t moved = 0;
    std::uint64_t trusted = 0;
    std::uint64_t newest = 0;
    const auto add_kernels = [&](std::uint64_t kernels, std::uint64_t step) {
      for (std::uint64_t i = 0; i < kernels; ++i) {
        if (judge.trusts_plan()) {
          ++trusted;
          moved += i % 10 == 0 ? moved_more : 0;
        }
        judge.kernel_added(step, moved, 0, kChunks);
        judge.step_took({step, 0, milliseconds(10)});
      }
    };
    for (int turn = 0; turn < 100; ++turn) {
      const std::uint64_t before = trusted;
      add_kernels(3 * kStep / 2, kStep);
      add_kernels(3 * kStep / 2, 2 * kStep);
      newest = trusted - before;
    }
    if (moved_more == 0) {
      EXPECT_GT(newest, kStep);
    } else {
      EXPECT_LT(newest, 10u);
    }
  }
}

TEST(PlanJudgeTest, WithoutTimesThePlanIsFollowedAfterAFewSteps) {
  PlanJudge judge;
  std::uint64_t kernels = 0;
  do {
    judge.kernel_added(kStep, 0, 0, kChunks);
    ASSERT_LT(++kernels, 5 * kStep);
  } while (!judge.trusts_plan());
  EXPECT_GE(kernels, policy::kStepsToTime * kStep);
}

TEST(PlanJudgeTest, APlanThatMovesMoreThanLruCostsLessAndLess) {
  JudgedProgram program;
  std::uint64_t pauses = 0;
  for (int step = 0; step < 2000; ++step) {
    const bool was_trusted = program.judge.trusts_plan();
    program.step(3, 1, milliseconds(10));
    if (was_trusted && !program.judge.trusts_plan()) ++pauses;
  }
  EXPECT_FALSE(program.judge.trusts_plan());
  EXPECT_GE(program.moved - program.moved_by_lru, kChunks / policy::kMovedMoreParts);
  EXPECT_LE(program.moved - program.moved_by_lru, 12 * 2 * kStep) << "each trial costs a step";
  EXPECT_LE(pauses, 12u);
}

TEST(PlanJudgeTest, APlanThatMovesTheSamePagesEarlierIsTrusted) {
  JudgedProgram program;
  for (int step = 0; step < 4; ++step) program.step(1, 1, milliseconds(10));
  ASSERT_TRUE(program.judge.trusts_plan());
  for (int step = 0; step < 100; ++step) {
    for (std::uint64_t kernel = 0; kernel < kStep; ++kernel) {
      program.moved += kernel < kStep / 2 ? kChunks / 4 * 2 / kStep : 0;
      program.moved_by_lru += kernel >= kStep / 2 ? kChunks / 4 * 2 / kStep : 0;
      program.judge.kernel_added(kStep, program.moved, program.moved_by_lru, kChunks);
      ASSERT_TRUE(program.judge.trusts_plan());
    }
  }
}

TEST(PlanJudgeTest, APlanWhoseStepsTakeLongerThanAStepOfLruPauses) {
  JudgedProgram program;
  while (!program.judge.trusts_plan()) program.step(0, 1, milliseconds(10));
  program.step(0, 1, milliseconds(20));  // pages go where the plan needs them
  int steps = 0;
  while (program.judge.trusts_plan() && steps < 10) {
    program.step(0, 1, milliseconds(11));
    ++steps;
  }
  EXPECT_LE(steps, 3);
  EXPECT_FALSE(program.judge.trusts_plan());
}

TEST(PlanJudgeTest, AFasterPlanIsTrustedForEver) {
  JudgedProgram program;
  for (int step = 0; step < 5; ++step) program.step(0, 1, milliseconds(10));
  for (int step = 0; step < 500; ++step) {
    program.step(0, 1, milliseconds(step % 2 == 0 ? 8 : 11));
    ASSERT_TRUE(program.judge.trusts_plan()) << "on average";
  }
}

TEST(PlanJudgeTest, TheTimeOfAnotherStepSaysNothing) {
  JudgedProgram program;
  while (!program.judge.trusts_plan()) program.step(0, 1, milliseconds(10));
  for (int step = 0; step < 10; ++step) {
    program.step(0, 0, milliseconds(10));
    program.judge.step_took({3 * kStep, 0, milliseconds(100)});
    ASSERT_TRUE(program.judge.trusts_plan());
  }
}

}  // namespace
}  // namespace uvm
