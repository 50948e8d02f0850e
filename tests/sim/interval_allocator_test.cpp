#include <gtest/gtest.h>

#include "sim/engine/interval_allocator.hpp"

namespace uvmsim {
namespace {

TEST(IntervalAllocator, GivesTheLowestIntervalThatFits) {
  IntervalAllocator allocator(100);
  EXPECT_EQ(allocator.allocate(10), 0U);
  EXPECT_EQ(allocator.allocate(20), 10U);
  EXPECT_EQ(allocator.allocate(5), 30U);
  allocator.free(10, 20);
  EXPECT_EQ(allocator.allocate(21), 35U);
  EXPECT_EQ(allocator.allocate(20), 10U);
}

TEST(IntervalAllocator, SaysWhenNothingFits) {
  IntervalAllocator allocator(10);
  EXPECT_EQ(allocator.allocate(11), std::nullopt);
  EXPECT_EQ(allocator.allocate(10), 0U);
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
}

TEST(IntervalAllocator, MergesFreedNeighboursInAnyOrder) {
  IntervalAllocator allocator(30);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(allocator.allocate(10));
  allocator.free(0, 10);
  allocator.free(20, 10);
  EXPECT_EQ(allocator.allocate(11), std::nullopt);
  allocator.free(10, 10);
  EXPECT_EQ(allocator.allocate(30), 0U);
}

}  // namespace
}  // namespace uvmsim
