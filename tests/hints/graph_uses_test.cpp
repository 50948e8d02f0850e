#include "hints/oversubscription/graph_uses.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {
namespace {

using Range = std::tuple<std::uintptr_t, std::size_t, int>;

std::vector<Range> joined(const std::vector<UseRange>& uses) {
  std::vector<Range> ranges;
  for (const UseRange& use : joined_uses(uses))
    ranges.emplace_back(use.address, use.size_bytes, use.access);
  return ranges;
}

TEST(GraphUsesTest, ARangeIsThereOnceInTheOrderOfFirstUses) {
  EXPECT_EQ(joined({{900, 10, kReads}, {100, 20, kReads}, {900, 10, kWrites}}),
            (std::vector<Range>{{900, 10, kReads | kWrites}, {100, 20, kReads}}));
}

TEST(GraphUsesTest, OverlappingRangesAreOneAndNeighboursAreNot) {
  EXPECT_EQ(
      joined({{500, 100, kReads}, {150, 100, kReads}, {100, 100, kWrites}, {600, 50, kReads}}),
      (std::vector<Range>{{500, 100, kReads}, {100, 150, kReads | kWrites}, {600, 50, kReads}}));
  EXPECT_EQ(joined({{100, 400, kReads}, {200, 10, kReads}, {450, 10, kReads}}),
            (std::vector<Range>{{100, 400, kReads}}));
  EXPECT_TRUE(joined({}).empty());
}

TEST(GraphUsesTest, ARangeThatTwoKernelsTouchOnceIsTouchedTwice) {
  EXPECT_EQ(
      joined({{100, 50, kReads | kOnce}, {100, 50, kReads | kOnce}, {400, 50, kReads | kOnce}}),
      (std::vector<Range>{{100, 50, kReads}, {400, 50, kReads | kOnce}}));
}

TEST(GraphUsesTest, TheLogTakesARangeOfAGraphInNoBlockAsABlock) {
  UseLog log([](std::uintptr_t) { return BlockExtent{}; });
  const UseRange use{.address = 8 * kPageBytes, .size_bytes = 3 * kPageBytes};
  EXPECT_EQ(log.add_kernel({&use, 1}), kBeforeLog);
  EXPECT_EQ(log.add_kernel({&use, 1}, Launch::kGraph), 1u);
  EXPECT_EQ(log.blocks_in_page(PageNumber{10}).size(), 1u);
  EXPECT_TRUE(log.blocks_in_page(PageNumber{11}).empty());
}

// The memory that a graph frees lies around small blocks that live on, such as its results.
TEST(GraphUsesTest, ARangeOfAGraphMayReachOverSmallBlocks) {
  constexpr std::uintptr_t kSmall = 5 * kPageBytes;
  UseLog log([](std::uintptr_t address) {
    // A block of 4 bytes, to which 512 bytes belong.
    return address - kSmall < 512 ? BlockExtent{kSmall, 4} : BlockExtent{};
  });
  const UseRange range{.address = kSmall, .size_bytes = 2 * kPageBytes};
  ASSERT_NE(log.add_kernel(std::array{range}, Launch::kGraph), kBeforeLog);
  std::set<PageNumber> pages;
  for (std::uint32_t i = 0; i < log.kernel(log.newest()).use_count; ++i) {
    log.each_page(log.use(log.kernel(log.newest()).first_use + i),
                  [&](PageNumber page) { pages.insert(page); });
  }
  EXPECT_EQ(pages, (std::set{page_of(kSmall), page_of(kSmall + kPageBytes),
                             page_of(kSmall + 2 * kPageBytes - 1)}));
}

}  // namespace
}  // namespace uvm::live
