#include <uvmalloc/allocator/span_store.hpp>

#include <gtest/gtest.h>

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

TEST(SpanStore, SpansOfOtherFacadesAndDevicesCountOnlyWhenAsked) {
  SpanStore store;
  store.add(span(100, 4, Facade::kHost));
  EXPECT_EQ(store.find(Facade::kDevice, 0, kPageBytes, false).span, nullptr);
  EXPECT_EQ(store.find(Facade::kHost, 1, kPageBytes, false).span, nullptr);
  EXPECT_NE(store.find(Facade::kDevice, 0, kPageBytes, true).span, nullptr);
}

}  // namespace
}  // namespace uvm
