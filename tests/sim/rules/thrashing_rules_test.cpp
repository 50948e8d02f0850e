// Pages that two devices keep taking from each other.
#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

constexpr std::uint64_t kLapseNs = 500000;

MachineRules thrashing_rules() {
  MachineRules rules = card_rules();
  rules.thrashing.detects = true;
  return rules;
}

class ThrashingRulesTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk); }
  void TearDown() override { EXPECT_EQ(machine.residency().broken_invariant(), ""); }

  // Two devices write a page in turn, `count` times in all, `step_ns` apart.
  void alternate(int count, std::uint64_t step_ns) {
    for (int turn = 0; turn < count; ++turn, now_ns += step_ns) {
      ASSERT_EQ(machine.write(turn % 2, 0, 0, 1, now_ns), Status::kOk);
    }
  }

  RuledMachine machine{thrashing_rules()};
  std::uint64_t now_ns = 1;
};

TEST_F(ThrashingRulesTest, ThreeMigrationsWithinALapseOfEachOtherThrottleTheNext) {
  alternate(3, kLapseNs);
  EXPECT_EQ(machine.counters().throttles_device, 0U);
  alternate(1, kLapseNs);
  EXPECT_EQ(machine.counters().throttles_device, 0U) << "device 0 has it already";
  ASSERT_EQ(machine.write(1, 0, 0, 1, now_ns), Status::kOk);
  EXPECT_EQ(machine.counters().throttles_device, 1U);
  EXPECT_TRUE(machine.is_resident(1, 0, 0)) << "and then it gets the page";
  EXPECT_EQ(machine.take_work().throttles, 1U);
}

TEST_F(ThrashingRulesTest, SlowerMigrationsAreNone) {
  alternate(20, kLapseNs + 1);
  EXPECT_EQ(machine.counters().throttles_device, 0U);
}

TEST_F(ThrashingRulesTest, AfterTenThrottlesThePageIsPinned) {
  alternate(3 + 10, kLapseNs / 2);
  EXPECT_EQ(machine.counters().throttles_device, 10U);
  EXPECT_EQ(machine.counters().pinned_pages_device, 0U);
  const int other = machine.is_resident(0, 0, 0) ? 1 : 0;
  ASSERT_EQ(machine.write(other, 0, 0, 1, now_ns), Status::kOk);
  EXPECT_EQ(machine.counters().pinned_pages_device, 1U);
  EXPECT_TRUE(machine.is_resident(kHost, 0, 0)) << "no device reaches the other's memory";
}

TEST_F(ThrashingRulesTest, PeersPinThePageWhereItIs) {
  machine.has_peers = true;
  alternate(3 + 10, kLapseNs / 2);
  const int holder = machine.is_resident(0, 0, 0) ? 0 : 1;
  ASSERT_EQ(machine.write(1 - holder, 0, 0, 1, now_ns), Status::kOk);
  EXPECT_TRUE(machine.is_resident(holder, 0, 0));
  EXPECT_EQ(machine.counters().pinned_pages_device, 1U);
}

TEST_F(ThrashingRulesTest, APinEndsAfter300Lapses) {
  machine.has_peers = true;
  alternate(3 + 10, kLapseNs / 2);
  const int holder = machine.is_resident(0, 0, 0) ? 0 : 1;
  ASSERT_EQ(machine.write(1 - holder, 0, 0, 1, now_ns), Status::kOk);
  ASSERT_EQ(machine.write(1 - holder, 0, 0, 1, now_ns + 300 * kLapseNs - 1), Status::kOk);
  EXPECT_TRUE(machine.is_resident(holder, 0, 0));
  ASSERT_EQ(machine.write(1 - holder, 0, 0, 1, now_ns + 300 * kLapseNs), Status::kOk);
  EXPECT_TRUE(machine.is_resident(1 - holder, 0, 0));
}

TEST_F(ThrashingRulesTest, AMoveByTheProgramClearsTheRecord) {
  alternate(3, kLapseNs);
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  ASSERT_EQ(machine.write(1, 0, 0, 1, now_ns), Status::kOk);
  EXPECT_EQ(machine.counters().throttles_device, 0U);
}

TEST_F(ThrashingRulesTest, ThePreferredLocationIsNeverThrottledNorPinnedOut) {
  machine.policy.preferred = 1;
  for (int round = 0; round < 20; ++round, now_ns += kLapseNs / 2) {
    machine.policy.preferred = kNoLocation;
    ASSERT_EQ(machine.write(0, 0, 0, 1, now_ns), Status::kOk);
    machine.policy.preferred = 1;
    ASSERT_EQ(machine.write(1, 0, 0, 1, now_ns), Status::kOk);
    ASSERT_TRUE(machine.is_resident(1, 0, 0)) << round;
  }
}

TEST_F(ThrashingRulesTest, ABlockIsForgottenAfterAnEpochFourTimes) {
  constexpr std::uint64_t kEpochNs = 2000 * kLapseNs;
  for (int epoch = 0; epoch < 4; ++epoch) {
    alternate(4, kLapseNs / 2);
    now_ns += kEpochNs;
    const std::uint64_t before = machine.counters().throttles_device;
    const int other = machine.is_resident(0, 0, 0) ? 1 : 0;
    ASSERT_EQ(machine.write(other, 0, 0, 1, now_ns), Status::kOk);
    EXPECT_EQ(machine.counters().throttles_device, before) << "epoch " << epoch;
    ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  }
  alternate(4, kLapseNs / 2);
  now_ns += kEpochNs;
  const std::uint64_t before = machine.counters().throttles_device;
  ASSERT_EQ(machine.write(machine.is_resident(0, 0, 0) ? 1 : 0, 0, 0, 1, now_ns), Status::kOk);
  EXPECT_EQ(machine.counters().throttles_device, before + 1)
      << "after four resets it thrashes for good";
}

}  // namespace
}  // namespace uvmsim::test
