#include "allocator/spans/span_store.hpp"
#include "allocator/policy/allocation_policy.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace uvm {
namespace {

std::unique_ptr<Span> span(std::uintptr_t page, std::size_t pages,
                           Facade facade = Facade::kDevice) {
  auto made = std::make_unique<Span>();
  made->base = reinterpret_cast<char*>(page * kPageBytes);
  made->raw = made->base;
  made->size_bytes = pages * kPageBytes;
  made->facade = facade;
  return made;
}

TEST(SpanStore, RunsAreTakenFromTheLowestAddress) {
  SpanStore store;
  store.add(span(100, 8));
  auto first = store.find(Facade::kDevice, 0, 2 * kPageBytes, false);
  EXPECT_EQ(first.offset, 0u);
  EXPECT_EQ(first.untouched_bytes, 2 * kPageBytes);
  store.take(first, 2 * kPageBytes);
  EXPECT_EQ(store.find(Facade::kDevice, 0, kPageBytes, false).offset, 2 * kPageBytes);
}

TEST(SpanStore, TouchedPagesArePreferredAndCostNothingAgain) {
  SpanStore store;
  Span* first = store.add(span(100, 4));
  store.add(span(200, 4));
  auto run = store.find(Facade::kDevice, 0, 4 * kPageBytes, false);
  store.take(run, 4 * kPageBytes);
  store.give_back(first, first->base, 4 * kPageBytes);
  auto again = store.find(Facade::kDevice, 0, 3 * kPageBytes, false);
  EXPECT_EQ(again.span, first);
  EXPECT_EQ(again.untouched_bytes, 0u);
  EXPECT_EQ(store.touched_bytes(), 4 * kPageBytes);
}

TEST(SpanStore, RunsGivenBackJoinTheirNeighbours) {
  SpanStore store;
  Span* only = store.add(span(100, 6));
  for (int run = 0; run < 3; ++run) {
    store.take(store.find(Facade::kDevice, 0, 2 * kPageBytes, false), 2 * kPageBytes);
  }
  EXPECT_EQ(store.find(Facade::kDevice, 0, kPageBytes, false).span, nullptr);
  store.give_back(only, only->base, 2 * kPageBytes);
  store.give_back(only, only->base + 4 * kPageBytes, 2 * kPageBytes);
  EXPECT_FALSE(only->empty());
  store.give_back(only, only->base + 2 * kPageBytes, 2 * kPageBytes);
  EXPECT_TRUE(only->empty());
  EXPECT_EQ(store.remove_empty().size(), 1u);
  EXPECT_EQ(store.touched_bytes(), 0u);
}

TEST(SpanStore, EveryFreeRunOfAFacadeAndDeviceIsVisitedAsLongAsItCanBe) {
  SpanStore store;
  Span* first = store.add(span(100, 6));
  store.add(span(200, 4, Facade::kHost));
  Span* last = store.add(span(300, 2));
  store.take(store.find_at(first, first->base + 2 * kPageBytes, kPageBytes), kPageBytes);
  std::vector<std::pair<char*, std::size_t>> visited;
  store.each_free(Facade::kDevice, 0, [&](Span* of, char* base, std::size_t size_bytes) {
    EXPECT_EQ(of, base < last->base ? first : last);
    visited.emplace_back(base, size_bytes);
  });
  const std::vector<std::pair<char*, std::size_t>> expected = {
      {first->base, 2 * kPageBytes},
      {first->base + 3 * kPageBytes, 3 * kPageBytes},
      {last->base, 2 * kPageBytes}};
  EXPECT_EQ(visited, expected);
}

TEST(SpanStore, OfManyFreeRunsSomeAreLookedAtAndOneThatFitsIsFound) {
  SpanStore store;
  constexpr std::size_t kRuns = 3 * policy::kComparedRuns;
  Span* only = store.add(span(100, 2 * kRuns + 2));
  for (std::size_t i = 0; i < kRuns; ++i) {
    store.take(store.find_at(only, only->base + (2 * i + 1) * kPageBytes, kPageBytes), kPageBytes);
  }
  std::size_t visited = 0;
  store.each_free(Facade::kDevice, 0, [&](Span*, char*, std::size_t) { ++visited; });
  EXPECT_EQ(visited, policy::kComparedRuns);
  EXPECT_EQ(store.find(Facade::kDevice, 0, 2 * kPageBytes, false).offset, 2 * kRuns * kPageBytes)
      << "the last of all";
  EXPECT_EQ(store.find(Facade::kDevice, 0, kPageBytes, false).offset, 0u);
}

TEST(SpanStore, SpansOfOtherFacadesAndDevicesCountOnlyOnRequest) {
  SpanStore store;
  store.add(span(100, 4, Facade::kHost));
  EXPECT_EQ(store.find(Facade::kDevice, 0, kPageBytes, false).span, nullptr);
  EXPECT_EQ(store.find(Facade::kHost, 1, kPageBytes, false).span, nullptr);
  EXPECT_NE(store.find(Facade::kDevice, 0, kPageBytes, true).span, nullptr);
}

TEST(SpanStore, ARunIsFoundAtItsPlaceOnlyWhereItIsFreeAndWhole) {
  SpanStore store;
  Span* only = store.add(span(100, 8));
  store.take(store.find(Facade::kDevice, 0, 2 * kPageBytes, false), 2 * kPageBytes);
  char* base = only->base;
  EXPECT_EQ(store.find_at(only, base + 2 * kPageBytes, 6 * kPageBytes).offset, 2 * kPageBytes);
  EXPECT_EQ(store.find_at(only, base + 5 * kPageBytes, kPageBytes).untouched_bytes, kPageBytes);
  EXPECT_EQ(store.find_at(only, base + kPageBytes, kPageBytes).span, nullptr) << "in use";
  EXPECT_EQ(store.find_at(only, base + kPageBytes, 2 * kPageBytes).span, nullptr) << "partly";
  EXPECT_EQ(store.find_at(only, base + 7 * kPageBytes, 2 * kPageBytes).span, nullptr) << "its end";
  EXPECT_EQ(store.find_at(only, base + 8 * kPageBytes, kPageBytes).span, nullptr) << "behind it";
}

// A new span with other pages may reuse the record of a removed span.
TEST(SpanStore, ARunThatStartsBeforeItsSpanIsNotFound) {
  SpanStore store;
  Span* only = store.add(span(100, 8));
  EXPECT_EQ(store.find_at(only, only->base - kPageBytes, 2 * kPageBytes).span, nullptr);
}

TEST(SpanStore, FreeTouchedPagesAreTakenOutInRunsAndComeBackUntouched) {
  SpanStore store;
  Span* only = store.add(span(100, 8));
  char* base = only->base;
  store.take(store.find(Facade::kDevice, 0, 6 * kPageBytes, false), 6 * kPageBytes);
  store.give_back(only, base, 2 * kPageBytes);
  store.give_back(only, base + 4 * kPageBytes, 2 * kPageBytes);
  auto runs = store.take_touched(only);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].base(), base);
  EXPECT_EQ(runs[0].size_bytes, 2 * kPageBytes);
  EXPECT_EQ(runs[1].base(), base + 4 * kPageBytes);
  EXPECT_EQ(runs[1].size_bytes, 2 * kPageBytes) << "what was never touched stays";
  EXPECT_EQ(only->free, (std::map<std::size_t, std::size_t>{{6 * kPageBytes, 2 * kPageBytes}}));
  EXPECT_EQ(store.touched_bytes(), 6 * kPageBytes);
  store.give_back_untouched(only, base, 2 * kPageBytes);
  store.give_back(only, base + 4 * kPageBytes, 2 * kPageBytes);
  EXPECT_EQ(store.touched_bytes(), 4 * kPageBytes);
  EXPECT_EQ(only->touched_bytes, 4 * kPageBytes);
  EXPECT_EQ(only->free, (std::map<std::size_t, std::size_t>{{0, 2 * kPageBytes},
                                                            {4 * kPageBytes, 4 * kPageBytes}}));
  EXPECT_EQ(store.find_at(only, base, 2 * kPageBytes).untouched_bytes, 2 * kPageBytes);
  EXPECT_EQ(store.find_at(only, base + 4 * kPageBytes, 4 * kPageBytes).untouched_bytes,
            2 * kPageBytes);
}

}  // namespace
}  // namespace uvm
