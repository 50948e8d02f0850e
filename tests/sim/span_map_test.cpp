#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "sim/engine/span_map.hpp"

namespace uvmsim {
namespace {

using Piece = std::tuple<std::size_t, std::size_t, int>;

std::vector<Piece> pieces(const SpanMap<int>& map, std::size_t first, std::size_t last) {
  std::vector<Piece> found;
  map.visit(first, last, [&](std::size_t from, std::size_t to, int value) {
    found.emplace_back(from, to, value);
  });
  return found;
}

TEST(SpanMap, StartsAsOneSpanOfTheDefaultValue) {
  const SpanMap<int> map(10);
  EXPECT_EQ(map.span_count(), 1U);
  EXPECT_EQ(pieces(map, 0, 10), (std::vector<Piece>{{0, 10, 0}}));
}

TEST(SpanMap, ChangingAMiddlePartSplitsInThree) {
  SpanMap<int> map(10);
  map.update(3, 5, [](int) { return 7; });
  EXPECT_EQ(pieces(map, 0, 10), (std::vector<Piece>{{0, 3, 0}, {3, 5, 7}, {5, 10, 0}}));
  EXPECT_EQ(map.at(2), 0);
  EXPECT_EQ(map.at(3), 7);
  EXPECT_EQ(map.at(4), 7);
  EXPECT_EQ(map.at(5), 0);
}

TEST(SpanMap, AChangeThatChangesNothingDoesNotSplit) {
  SpanMap<int> map(10);
  map.update(3, 5, [](int value) { return value; });
  EXPECT_EQ(map.span_count(), 1U);
}

TEST(SpanMap, SpansNeverMergeAgain) {
  SpanMap<int> map(10);
  map.update(3, 5, [](int) { return 7; });
  map.update(0, 10, [](int) { return 0; });
  EXPECT_EQ(pieces(map, 0, 10), (std::vector<Piece>{{0, 3, 0}, {3, 5, 0}, {5, 10, 0}}));
}

TEST(SpanMap, ChangesAcrossSpansKeepEachSpansOwnValue) {
  SpanMap<int> map(10);
  map.update(0, 5, [](int) { return 1; });
  map.update(4, 6, [](int value) { return value + 10; });
  EXPECT_EQ(pieces(map, 0, 10),
            (std::vector<Piece>{{0, 4, 1}, {4, 5, 11}, {5, 6, 10}, {6, 10, 0}}));
  EXPECT_EQ(pieces(map, 4, 6), (std::vector<Piece>{{4, 5, 11}, {5, 6, 10}}));
}

}  // namespace
}  // namespace uvmsim
