// The program's ordinary memory without host page tables (HMM): a device holds it page by page.
#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

constexpr std::size_t kOrdinaryBlock = kArenaBlocks;  // the first block behind the arena

class OrdinaryRulesTest : public ::testing::Test {
 protected:
  static MachineRules rules() {
    MachineRules rules;
    rules.memory.ordinary_by_page = true;
    return rules;
  }
  void TearDown() override { EXPECT_EQ(machine.residency().broken_invariant(), ""); }

  Status write(std::size_t block, std::size_t first, std::size_t count) {
    const PageRange range = RuledMachine::pages(block, first, count);
    return machine.residency().touch(0, range, range, {}, {false, true});
  }

  RuledMachine machine{rules()};
};

TEST_F(OrdinaryRulesTest, ADeviceTakes4KiBForOneTouchedPage) {
  ASSERT_EQ(write(kOrdinaryBlock, 7, 1), Status::kOk);
  EXPECT_EQ(machine.memory(0).managed_bytes(), kPageBytes);
  ASSERT_EQ(write(kOrdinaryBlock, 7, 3), Status::kOk);
  EXPECT_EQ(machine.memory(0).managed_bytes(), 3 * kPageBytes);
}

TEST_F(OrdinaryRulesTest, ManagedMemoryStillTakesAWholeChunk) {
  ASSERT_EQ(write(0, 7, 1), Status::kOk);
  EXPECT_EQ(machine.memory(0).managed_bytes(), kBlockBytes);
}

TEST_F(OrdinaryRulesTest, PagesThatLeaveGiveTheirMemoryBack) {
  ASSERT_EQ(write(kOrdinaryBlock, 0, 8), Status::kOk);
  ASSERT_EQ(machine.prefetch(kHost, kOrdinaryBlock, 0, 5), Status::kOk);
  EXPECT_EQ(machine.memory(0).managed_bytes(), 3 * kPageBytes);
  ASSERT_EQ(machine.prefetch(kHost, kOrdinaryBlock, 5, 3), Status::kOk);
  EXPECT_EQ(machine.memory(0).managed_bytes(), 0U);
}

TEST_F(OrdinaryRulesTest, PagesOfManyBlocksFillADeviceBeforeOneIsEvicted) {
  for (std::size_t block = 0; block < 3 * kChunks; ++block)
    ASSERT_EQ(write(kOrdinaryBlock + block, 0, 64), Status::kOk);
  EXPECT_EQ(machine.counters().evicted_chunks, 0U);
  ASSERT_EQ(machine.prefetch(0, kOrdinaryBlock + 20), Status::kOk);
  ASSERT_EQ(machine.prefetch(0, kOrdinaryBlock + 21), Status::kOk);
  ASSERT_EQ(machine.prefetch(0, kOrdinaryBlock + 22), Status::kOk);
  EXPECT_EQ(machine.counters().evicted_chunks, 4U) << "768 and 1536 pages, and room for 2048";
  EXPECT_EQ(machine.resident(0, kOrdinaryBlock), 0U);
  EXPECT_EQ(machine.resident(0, kOrdinaryBlock + 4), 64U);
}

}  // namespace
}  // namespace uvmsim::test
