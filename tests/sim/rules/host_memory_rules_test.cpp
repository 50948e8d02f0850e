// The host's memory: what takes it, how long it is kept, and what happens when it is full.
#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

MachineRules with_host_blocks(std::size_t blocks) {
  MachineRules rules = card_rules();
  rules.memory.host_bytes = blocks * kBlockBytes;
  return rules;
}

class HostMemoryRulesTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(machine.residency().broken_invariant(), ""); }
  RuledMachine machine{with_host_blocks(3)};
};

TEST_F(HostMemoryRulesTest, TheFirstPageOfABlockTakes2MiB) {
  ASSERT_EQ(machine.prefetch(kHost, 0, 5, 1), Status::kOk);
  EXPECT_EQ(machine.host().used_bytes(), kBlockBytes);
  EXPECT_EQ(machine.resident(kHost, 0), 1U);
}

TEST_F(HostMemoryRulesTest, PagesKeepTheirMemoryWhenTheyMigrate) {
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  EXPECT_EQ(machine.host().used_bytes(), kBlockBytes);
  machine.take_work();
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  EXPECT_EQ(machine.take_work().host_zeroed_bytes, 0U) << "and come back into it";
}

TEST_F(HostMemoryRulesTest, AFreeGivesItBack) {
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  machine.residency().forget(RuledMachine::pages(0, 0, kPagesPerBlock));
  EXPECT_EQ(machine.host().used_bytes(), 0U);
}

TEST_F(HostMemoryRulesTest, PagesOnADeviceAloneTakeNone) {
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  EXPECT_EQ(machine.host().used_bytes(), 0U);
}

TEST_F(HostMemoryRulesTest, APrefetchToTheHostFailsWhereItIsFull) {
  for (std::size_t block = 0; block < 3; ++block)
    ASSERT_EQ(machine.prefetch(kHost, block), Status::kOk);
  EXPECT_EQ(machine.prefetch(kHost, 3), Status::kOutOfMemory);
  EXPECT_EQ(machine.resident(kHost, 3), 0U);
  EXPECT_EQ(machine.host().used_bytes(), 3 * kBlockBytes);
}

TEST_F(HostMemoryRulesTest, AnEvictionThatFindsNoRoomFailsTheKernelThatNeedsIt) {
  for (std::size_t block = 0; block < kChunks + 3; ++block) {
    ASSERT_EQ(machine.write(0, block, 0, kPagesPerBlock), Status::kOk) << block;
  }
  EXPECT_EQ(machine.host().used_bytes(), 3 * kBlockBytes);
  EXPECT_EQ(machine.write(0, kChunks + 3, 0, 1), Status::kOutOfMemory);
  EXPECT_EQ(machine.memory(0).managed_bytes(), kChunks * kBlockBytes);
}

TEST_F(HostMemoryRulesTest, ThePeakIsTheMostAtOnce) {
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  ASSERT_EQ(machine.prefetch(kHost, 1), Status::kOk);
  machine.residency().forget(RuledMachine::pages(0, 0, kPagesPerBlock));
  EXPECT_EQ(machine.host().peak_bytes(), 2 * kBlockBytes);
}

}  // namespace
}  // namespace uvmsim::test
