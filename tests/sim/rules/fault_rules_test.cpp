// Which pages a device fault brings, and in how many batches.
#include <random>

#include "sim/engine/fault_growth.hpp"

#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

using FaultRulesTest = RuleTest;

TEST_F(FaultRulesTest, OneTouchedPageTakesA2MiBChunk) {
  ASSERT_EQ(machine.read(0, 2, 300, 1), Status::kOk);
  EXPECT_EQ(machine.memory(0).managed_bytes(), kBlockBytes);
}

TEST_F(FaultRulesTest, AFaultBringsItsAligned64KiB) {
  ASSERT_EQ(machine.read(0, 0, 37, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 16U);
  EXPECT_TRUE(machine.is_resident(0, 0, 32));
  EXPECT_TRUE(machine.is_resident(0, 0, 47));
  EXPECT_EQ(machine.counters().fault_pages_device, 1U);
  EXPECT_EQ(machine.counters().speculative_pages_device, 15U);
}

TEST_F(FaultRulesTest, ASubtreeMoreThan51PercentFullComesWhole) {
  const std::size_t expected[] = {16, 32, 64, 128, 256, 512};
  std::size_t next = 0;
  for (const std::size_t size : expected) {
    ASSERT_EQ(machine.read(0, 0, next, 1), Status::kOk);
    EXPECT_EQ(machine.resident(0, 0), size);
    next = size;
  }
  EXPECT_EQ(machine.counters().faults_device, 6U) << "of 512 pages touched one after another";
}

TEST_F(FaultRulesTest, HalfASubtreeIsNotEnough) {
  ASSERT_EQ(machine.read(0, 0, 0, 1), Status::kOk);
  ASSERT_EQ(machine.read(0, 0, 32, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 32U) << "32 of 64 pages are 50 %";
  ASSERT_EQ(machine.read(0, 0, 48, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 64U) << "48 of 64 pages are 75 %";
}

TEST_F(FaultRulesTest, TheTreeEndsWithTheBlock) {
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  ASSERT_EQ(machine.read(0, 1, 0, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, 1), 16U);
}

TEST_F(FaultRulesTest, PagesOutsideTheRangeDoNotComeAlong) {
  Access read{.read = true, .write = false};
  const PageRange range = RuledMachine::pages(0, 0, 20);
  ASSERT_EQ(machine.residency().touch(0, RuledMachine::pages(0, 18, 1), range, {}, read),
            Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 4U) << "pages 16 to 19";
}

TEST_F(FaultRulesTest, TheFirstTouchByThePreferredLocationFillsTheBlock) {
  machine.policy.preferred = 0;
  ASSERT_EQ(machine.read(0, 0, 100, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
  EXPECT_EQ(machine.take_work().serviced_blocks, 1U);
}

TEST_F(FaultRulesTest, ALaterTouchByThePreferredLocationDoesNot) {
  ASSERT_EQ(machine.prefetch(kHost, 0, 0, 1), Status::kOk);
  machine.policy.preferred = 0;
  ASSERT_EQ(machine.read(0, 0, 100, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 16U);
}

TEST_F(FaultRulesTest, ADenseBlockFaultsInSixTurnsOfFour) {
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.counters().faults_device, 24U);
  const PlacementWork work = machine.take_work();
  EXPECT_EQ(work.serviced_blocks, 6U);
  EXPECT_EQ(work.batches(256), 6U);
}

TEST_F(FaultRulesTest, FaultsOfManyBlocksShareBatchesOf256) {
  PlacementWork work;
  for (int block = 0; block < 65; ++block) work.count_faults(0, 4);
  for (int block = 0; block < 64; ++block) work.count_faults(1, 4);
  EXPECT_EQ(work.batches(256), 3U) << "260 faults of the first turn, 256 of the second";
  EXPECT_EQ(work.serviced_blocks, 129U) << "but each block of a batch is serviced by itself";
}

TEST_F(FaultRulesTest, ARepeatedTouchRaisesNoFault) {
  ASSERT_EQ(machine.read(0, 0, 0, 16), Status::kOk);
  machine.take_work();
  ASSERT_EQ(machine.write(0, 0, 0, 16), Status::kOk);
  EXPECT_EQ(machine.take_work().serviced_blocks, 0U);
}

TEST_F(FaultRulesTest, AFreshChunkIsZeroedButForThePagesCopiedIn) {
  ASSERT_EQ(machine.prefetch(kHost, 0, 0, 100), Status::kOk);
  machine.take_work();
  ASSERT_EQ(machine.read(0, 0, 0, 1), Status::kOk);
  EXPECT_EQ(machine.take_work().zeroed_bytes, (kPagesPerBlock - 100) * kPageBytes);
  ASSERT_EQ(machine.read(0, 0, 300, 1), Status::kOk);
  EXPECT_EQ(machine.take_work().zeroed_bytes, 0U) << "it is zeroed once";
}

// States the rule again in a slow way that looks at a subtree page by page.
PageMask slowly_grown(const PageMask& faulted, const PageMask& resident, const PageMask& eligible) {
  constexpr std::size_t kGroup = 16;
  PageMask counted = resident | faulted;
  for (std::size_t page = 0; page < kPagesPerBlock; ++page) {
    const std::size_t group = page / kGroup * kGroup;
    for (std::size_t other = group; other < group + kGroup; ++other) {
      if (faulted[other] && eligible[page]) counted.set(page);
    }
  }
  PageMask result = counted & ~resident;
  for (std::size_t page = 0; page < kPagesPerBlock; ++page) {
    if (!faulted[page]) continue;
    for (std::size_t size = kPagesPerBlock; size >= kGroup; size /= 2) {
      std::size_t present = 0;
      std::size_t all = 0;
      for (std::size_t other = page / size * size; other < page / size * size + size; ++other) {
        if (!eligible[other] && !resident[other] && !faulted[other]) continue;
        ++all;
        present += counted[other] ? 1 : 0;
      }
      if (present * 100 <= all * 51) continue;
      for (std::size_t other = page / size * size; other < page / size * size + size; ++other) {
        if (eligible[other]) result.set(other);
      }
      break;
    }
  }
  return result;
}

TEST_F(FaultRulesTest, GrowthIsThatOfTheRuleWrittenPageByPage) {
  std::mt19937 random(11);
  const FaultRules rules = card_rules().faults;
  for (int round = 0; round < 300; ++round) {
    PageMask resident;
    PageMask faulted;
    PageMask eligible = ~PageMask{};
    const unsigned density = random() % 100;
    for (std::size_t page = 0; page < kPagesPerBlock; ++page) {
      resident[page] = random() % 100 < density;
      eligible[page] = random() % 8 != 0;
      faulted[page] = random() % 100 == 0 && !resident[page];
    }
    eligible &= ~resident;
    ASSERT_EQ(grow_faults(faulted, resident, eligible, rules) & ~resident,
              slowly_grown(faulted, resident, eligible) & ~resident)
        << "round " << round;
  }
}

}  // namespace
}  // namespace uvmsim::test
