// Where a page goes that a device touches, in the order in which the modelled driver checks.
#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

class AdviceRulesTest : public RuleTest {
 protected:
  void put_on_host() {
    ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
    machine.take_work();
  }
};

TEST_F(AdviceRulesTest, AReadOfReadMostlyMemoryCopiesItWhateverElseIsAdvised) {
  put_on_host();
  machine.policy = {.preferred = kHost, .accessed_by = 1, .read_mostly = true};
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
  EXPECT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
}

TEST_F(AdviceRulesTest, AWriteToReadMostlyMemoryLeavesTheWritersCopyAlone) {
  put_on_host();
  machine.policy.read_mostly = true;
  ASSERT_EQ(machine.read(1, 0, 0, kPagesPerBlock), Status::kOk);
  ASSERT_EQ(machine.write(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
  EXPECT_EQ(machine.resident(1, 0) + machine.resident(kHost, 0), 0U);
}

TEST_F(AdviceRulesTest, APrefetchOfReadMostlyMemoryCopies) {
  put_on_host();
  machine.policy.read_mostly = true;
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  EXPECT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
}

TEST_F(AdviceRulesTest, ThePreferredDeviceGetsItsPages) {
  put_on_host();
  machine.policy = {.preferred = 0, .accessed_by = 1};
  ASSERT_EQ(machine.read(0, 0, 0, 16), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 16U) << "though it is in the accessed-by set";
}

TEST_F(AdviceRulesTest, PagesThatAreNowhereComeToThePreferredLocationThatTheDeviceReaches) {
  machine.policy.preferred = kHost;
  ASSERT_EQ(machine.write(0, 0, 0, 1), Status::kOk);
  EXPECT_EQ(machine.resident(kHost, 0), 1U);
  EXPECT_EQ(machine.memory(0).managed_bytes(), 0U);
}

TEST_F(AdviceRulesTest, PagesThatAreNowhereComeToTheDeviceWhereItDoesNotReachThePreferredOne) {
  machine.policy.preferred = 1;
  ASSERT_EQ(machine.write(0, 0, 0, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 16U);
}

TEST_F(AdviceRulesTest, AccessedByLeavesPagesWhereTheyAreWithoutAFault) {
  put_on_host();
  machine.policy.accessed_by = 1;
  ASSERT_EQ(machine.write(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
  const PlacementWork work = machine.take_work();
  EXPECT_EQ(work.remote_bytes, kBlockBytes);
  EXPECT_EQ(work.serviced_blocks, 0U);
}

TEST_F(AdviceRulesTest, AccessedByADeviceOutOfReachMigrates) {
  ASSERT_EQ(machine.prefetch(1, 0), Status::kOk);
  machine.policy.accessed_by = 1;
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
}

TEST_F(AdviceRulesTest, AccessedByAPeerIsUsedThere) {
  machine.has_peers = true;
  ASSERT_EQ(machine.prefetch(1, 0), Status::kOk);
  machine.policy.accessed_by = 1;
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(1, 0), kPagesPerBlock);
}

TEST_F(AdviceRulesTest, APreferredLocationElsewhereThatTheDeviceReachesGetsThePages) {
  machine.has_peers = true;
  put_on_host();
  machine.policy.preferred = 1;
  ASSERT_EQ(machine.read(0, 0, 0, 1), Status::kOk);
  EXPECT_TRUE(machine.is_resident(1, 0, 0));
  EXPECT_EQ(machine.resident(0, 0), 0U);
}

TEST_F(AdviceRulesTest, WithoutAdviceThePagesGoToTheDevice) {
  put_on_host();
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
  EXPECT_EQ(machine.resident(kHost, 0), 0U);
}

TEST_F(AdviceRulesTest, ThePreferredLocationDoesNotStopAPrefetch) {
  machine.policy.preferred = kHost;
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
}

TEST_F(AdviceRulesTest, EvictedPagesAreMappedAgainForTheAccessedBySet) {
  machine.policy.accessed_by = 1;
  for (std::size_t block = 0; block <= kChunks; ++block)
    ASSERT_EQ(machine.prefetch(0, block), Status::kOk);
  ASSERT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
  machine.take_work();
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
  EXPECT_EQ(machine.take_work().serviced_blocks, 0U);
}

TEST_F(AdviceRulesTest, EvictedPagesAreNotMappedAgainForTheirPreferredLocation) {
  machine.policy = {.preferred = 0, .accessed_by = 1};
  for (std::size_t block = 0; block <= kChunks; ++block)
    ASSERT_EQ(machine.prefetch(0, block), Status::kOk);
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock) << "it faults and gets them back";
}

TEST_F(AdviceRulesTest, SettingReadMostlyBreaksMappingsFromAfar) {
  machine.policy.preferred = kHost;
  ASSERT_EQ(machine.write(0, 0, 0, 1), Status::kOk);
  ASSERT_EQ(machine.write(0, 0, 0, 1), Status::kOk);
  EXPECT_EQ(machine.counters().faults_device, 1U) << "mapped by the first touch";
  machine.residency().unmap_remote(RuledMachine::pages(0, 0, kPagesPerBlock));
  ASSERT_EQ(machine.write(0, 0, 0, 1), Status::kOk);
  EXPECT_EQ(machine.counters().faults_device, 2U);
}

TEST_F(AdviceRulesTest, UnsetReadMostlyKeepsTheCopyAtThePreferredLocation) {
  machine.policy.read_mostly = true;
  put_on_host();
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  machine.residency().collapse(RuledMachine::pages(0, 0, kPagesPerBlock), 0);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
  EXPECT_EQ(machine.resident(kHost, 0), 0U);
}

TEST_F(AdviceRulesTest, ADiscardKeepsOneOfTheDuplicates) {
  machine.policy.read_mostly = true;
  put_on_host();
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  machine.discard(0);
  EXPECT_EQ(machine.resident(0, 0) + machine.resident(kHost, 0), kPagesPerBlock);
}

}  // namespace
}  // namespace uvmsim::test
