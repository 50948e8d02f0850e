#include "hints/oversubscription/thrash_detector.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {
namespace {

using std::chrono::milliseconds;

struct TestClock final : StepClock {
  void mark() override {
    before = last;
    last = now;
  }
  std::optional<Time> between_marks() override {
    if (!is_known) return std::nullopt;
    return last - before;
  }
  milliseconds now{0};
  milliseconds before{0};
  milliseconds last{0};
  bool is_known = true;
};

constexpr std::uint64_t kDeviceBytes = 1'000'000'000;

// Steps of 10 kernels, which may take twice the time with enough memory.
struct ThrashDetectorTest : ::testing::Test {
  ThrashDetectorTest() { kernel(milliseconds(0), 0, 10); }  // begins the first step

  void kernel(milliseconds time, std::uint64_t moved_bytes, std::uint64_t step_kernels) {
    clock.now += time;
    moved += moved_bytes;
    detector.kernel_added(step_kernels, moved, kDeviceBytes, clock);
    if (const auto verdict = detector.take_verdict()) verdicts.push_back(*verdict);
  }
  // Runs a step of 100 ms.
  void step(std::uint64_t moved_bytes) {
    for (int i = 0; i < 10; ++i) kernel(milliseconds(10), moved_bytes / 10, 10);
  }
  void steps(int count, std::uint64_t moved_bytes) {
    for (int i = 0; i < count; ++i) step(moved_bytes);
  }
  std::size_t beginnings() const {
    std::size_t count = 0;
    for (const auto& verdict : verdicts) count += static_cast<std::size_t>(verdict.is_new);
    return count;
  }

  // Bytes that a step of 100 ms moves. At 12 bytes/ns, 1.2 GB take 100 ms. The comments compare the
  // step's time with its time with enough memory.
  static constexpr std::uint64_t kCalm = 240'000'000;        // 1.25 times
  static constexpr std::uint64_t kBetween = 480'000'000;     // 1.67 times
  static constexpr std::uint64_t kSlow = 900'000'000;        // 4 times
  static constexpr std::uint64_t kVerySlow = 1'080'000'000;  // 10 times
  static constexpr std::uint64_t kNothingElse = 1'200'000'000;

  ThrashDetector detector{2};
  TestClock clock;
  std::uint64_t moved = 0;
  std::vector<ThrashDetector::Verdict> verdicts;
};

TEST_F(ThrashDetectorTest, OneVerySlowStepIsThrashing) {
  step(kVerySlow);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_TRUE(verdicts[0].is_too_slow);
  EXPECT_TRUE(verdicts[0].is_new);
  EXPECT_EQ(verdicts[0].moved_bytes, kVerySlow);
  EXPECT_NEAR(verdicts[0].slowdown, 10, 1e-9);
  step(kNothingElse);
  EXPECT_EQ(verdicts[1].slowdown, std::numeric_limits<double>::infinity());
}

TEST_F(ThrashDetectorTest, OfSlowStepsThreeInARowAre) {
  steps(2, kSlow);
  step(kCalm);
  steps(2, kSlow);
  EXPECT_EQ(beginnings(), 0u);
  for (const auto& verdict : verdicts) EXPECT_FALSE(verdict.is_too_slow);
  step(kSlow);
  EXPECT_EQ(beginnings(), 1u);
  EXPECT_TRUE(verdicts.back().is_too_slow);
}

TEST_F(ThrashDetectorTest, StepsWithinTheLimitAreNot) {
  steps(20, kBetween);
  EXPECT_EQ(verdicts.size(), 20u);
  for (const auto& verdict : verdicts) EXPECT_FALSE(verdict.is_too_slow);
}

TEST_F(ThrashDetectorTest, ItBeginsAgainOnlyAfterThreeCalmStepsInARow) {
  for (int i = 0; i < 10; ++i) {
    step(kVerySlow);
    step(kBetween);
    steps(2, kCalm);
  }
  EXPECT_EQ(beginnings(), 1u);
  step(kVerySlow);
  steps(3, kCalm);
  step(kVerySlow);
  EXPECT_EQ(beginnings(), 2u);
}

TEST_F(ThrashDetectorTest, WithoutAKnownStepItIsJudgedWhenHalfOfTheDeviceHasMoved) {
  kernel(milliseconds(25), kDeviceBytes / 2 - 1, 0);
  EXPECT_TRUE(verdicts.empty());
  kernel(milliseconds(25), 1, 0);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].moved_bytes, kDeviceBytes / 2);
  EXPECT_NEAR(verdicts[0].slowdown, 6, 1e-9);
  EXPECT_TRUE(verdicts[0].is_new);
}

TEST_F(ThrashDetectorTest, WithoutAKnownStepAThousandKernelsAreTakenForOne) {
  for (std::uint64_t i = 1; i < policy::kKernelsWithoutStep; ++i) kernel(milliseconds(1), 0, 0);
  EXPECT_TRUE(verdicts.empty());
  kernel(milliseconds(1), 0, 0);
  EXPECT_EQ(verdicts.size(), 1u);
}

TEST_F(ThrashDetectorTest, TheTimeMayBecomeKnownLater) {
  clock.is_known = false;
  step(kVerySlow);
  steps(1, kCalm);
  EXPECT_TRUE(verdicts.empty());
  clock.is_known = true;
  kernel(milliseconds(10), 0, 10);
  ASSERT_GE(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].moved_bytes, kVerySlow);
  EXPECT_NEAR(verdicts[0].slowdown, 10, 1e-9);
}

TEST_F(ThrashDetectorTest, AfterAnErrorThrashingIsFoundAnew) {
  steps(2, kVerySlow);
  EXPECT_EQ(beginnings(), 1u);
  detector.begin_again();
  kernel(milliseconds(10), 0, 10);
  step(kVerySlow);
  EXPECT_EQ(beginnings(), 2u);
}

}  // namespace
}  // namespace uvm::live
