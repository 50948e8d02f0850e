#include "hints/oversubscription/page_history.hpp"

#include <gtest/gtest.h>

#include <set>

namespace uvm::live {
namespace {

constexpr std::uint64_t kStep = 100;

struct PageHistoryTest : ::testing::Test {
  PageHistory history;
  std::set<RecordId> live;

  std::optional<KernelNumber> next_use(KernelNumber after) const {
    return history.next_use_by_others(after, kStep,
                                      [this](RecordId id) { return live.contains(id); });
  }
};

TEST_F(PageHistoryTest, ThePageIsUsedAgainOneStepLater) {
  for (const KernelNumber kernel : {110u, 120u, 150u}) history.used(kernel, 1, kStep);
  EXPECT_EQ(next_use(205), 210u);
  EXPECT_EQ(next_use(210), 220u);
  EXPECT_EQ(next_use(220), 250u);
  EXPECT_EQ(next_use(250), std::nullopt);
}

TEST_F(PageHistoryTest, UsesByBlocksThatAreThereCountElsewhere) {
  history.used(110, 1, kStep);
  history.used(120, 2, kStep);
  live = {1};
  EXPECT_EQ(next_use(205), 220u);
}

TEST_F(PageHistoryTest, ItHoldsBlocksWhereItDidOneStepBefore) {
  history.used(110, 1, kStep);
  history.emptied(120, kStep);
  history.used(150, 2, kStep);
  const KernelNumber now = 205;
  EXPECT_EQ(history.holds_blocks_before(208, now, kStep), std::nullopt) << "as it does now";
  EXPECT_EQ(history.holds_blocks_before(211, now, kStep), true);
  EXPECT_EQ(history.holds_blocks_before(220, now, kStep), true);
  EXPECT_EQ(history.holds_blocks_before(221, now, kStep), false);
  EXPECT_EQ(history.holds_blocks_before(250, now, kStep), false);
  EXPECT_EQ(history.holds_blocks_before(251, now, kStep), true);
  EXPECT_EQ(history.holds_blocks_before(221, 220, kStep), false) << "freed after kernel 220";
  EXPECT_EQ(history.holds_blocks_before(50, 10, kStep), std::nullopt) << "before any step";
}

TEST_F(PageHistoryTest, AStepIsKeptHoweverLongTheProgramRuns) {
  KernelNumber kernel = 1;
  for (; kernel <= 100'000; ++kernel) {
    history.used(kernel, 1, kStep);
    const std::optional<KernelNumber> next = next_use(kernel);
    if (kernel <= kStep) continue;
    ASSERT_EQ(next, kernel + 1);
  }
}

}  // namespace
}  // namespace uvm::live
