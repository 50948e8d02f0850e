#include "tools/replay/live_ranges.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace uvm::replay {
namespace {

TEST(LiveRanges, NeighboursTouchAndDoNotOverlap) {
  LiveRanges ranges;
  EXPECT_FALSE(ranges.add(100, 50));
  EXPECT_FALSE(ranges.add(150, 10));
  EXPECT_FALSE(ranges.add(90, 10));
  EXPECT_EQ(ranges.size(), 3u);
}

TEST(LiveRanges, TheRangeThatIsOverlappedIsNamed) {
  LiveRanges ranges;
  ASSERT_FALSE(ranges.add(100, 50));
  struct Case {
    std::uintptr_t begin;
    std::size_t size_bytes;
  };
  for (const Case& each : {Case{100, 50}, Case{99, 2}, Case{149, 1}, Case{50, 200}, Case{120, 0}}) {
    auto other = ranges.add(each.begin, each.size_bytes);
    ASSERT_TRUE(other) << each.begin;
    EXPECT_EQ(other->begin, 100u);
    EXPECT_EQ(other->size_bytes, 50u);
  }
  EXPECT_EQ(ranges.size(), 1u);
  EXPECT_TRUE(ranges.remove(100));
  EXPECT_FALSE(ranges.remove(100));
  EXPECT_FALSE(ranges.add(50, 200));
}

TEST(LiveRanges, ItAgreesWithOneFlagPerByte) {
  std::mt19937 random(1);
  LiveRanges ranges;
  std::vector<bool> taken(400);
  std::vector<LiveRanges::Range> live;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(ranges.remove(live.back().begin));
      for (std::size_t i = 0; i < live.back().size_bytes; ++i) taken[live.back().begin + i] = false;
      live.pop_back();
      continue;
    }
    const std::size_t begin = random() % 380;
    const std::size_t size_bytes = 1 + random() % 20;
    bool clash = false;
    for (std::size_t i = 0; i < size_bytes; ++i) clash = clash || taken[begin + i];
    ASSERT_EQ(ranges.add(begin, size_bytes).has_value(), clash) << "step " << step;
    if (clash) continue;
    for (std::size_t i = 0; i < size_bytes; ++i) taken[begin + i] = true;
    live.push_back({begin, size_bytes});
  }
}

}  // namespace
}  // namespace uvm::replay
