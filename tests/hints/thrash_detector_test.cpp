#include <uvmalloc/hints/live/thrash_detector.hpp>

#include <gtest/gtest.h>

namespace uvm::live {
namespace {

using std::chrono::milliseconds;

// Steps of 10 kernels.
struct ThrashDetectorTest : ::testing::Test {
  void step(milliseconds time, std::uint64_t moved_bytes) {
    for (int kernel = 0; kernel < 10; ++kernel) {
      now += time / 10;
      moved += moved_bytes / 10;
      detector.kernel_added(10, moved, now);
    }
  }
  ThrashDetector detector;
  milliseconds now{0};
  std::uint64_t moved = 0;
};

TEST_F(ThrashDetectorTest, StepsThatMoveMostOfTheTimeRaiseOneAlarm) {
  for (int i = 0; i < 4; ++i) step(milliseconds(100), 900'000'000);
  const auto alarm = detector.take_alarm();
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->moved_bytes, 900'000'000u);
  EXPECT_NEAR(alarm->share, 0.75, 1e-9);
  for (int i = 0; i < 10; ++i) step(milliseconds(100), 900'000'000);
  EXPECT_FALSE(detector.take_alarm());
}

TEST_F(ThrashDetectorTest, StepsThatMoveLessThanHalfOfTheTimeRaiseNone) {
  for (int i = 0; i < 10; ++i) step(milliseconds(100), 500'000'000);
  EXPECT_FALSE(detector.take_alarm());
}

TEST_F(ThrashDetectorTest, OneSlowStepRaisesNone) {
  for (int i = 0; i < 10; ++i) step(milliseconds(100), i == 5 ? 1'200'000'000 : 0);
  EXPECT_FALSE(detector.take_alarm());
}

TEST_F(ThrashDetectorTest, WithoutAKnownStepAThousandKernelsAreTakenForOne) {
  const auto kernels = [&](std::uint64_t count) {
    for (std::uint64_t kernel = 0; kernel < count; ++kernel)
      detector.kernel_added(0, moved += 9'000'000, now += milliseconds(1));
  };
  kernels(3 * ThrashDetector::kKernelsWithoutStep);
  EXPECT_FALSE(detector.take_alarm()) << "the first kernel ends no step";
  kernels(1);
  const auto alarm = detector.take_alarm();
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->moved_bytes, ThrashDetector::kKernelsWithoutStep * 9'000'000);
}

}  // namespace
}  // namespace uvm::live
