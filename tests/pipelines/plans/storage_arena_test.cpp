#include "pipelines/plans/storage_arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>

#include "tests/support/counting_memory.hpp"

namespace uvm {
namespace {

using testing::CountingMemory;
using Values = std::vector<std::int64_t>;

// x and y are live together; z comes after both. One size depends on n, one on m, one on both.
StoragePlan small_plan() {
  return StoragePlan::make({.variables = {{"n", 1, 16, ""}, {"m", 1, 8, ""}, {"k", 0, 0, "2 * m"}},
                            .storages = {{"x", "8 * n", 0, 2, ""},
                                         {"y", "4 * k", 1, 3, ""},
                                         {"z", "n * m", 3, 4, ""},
                                         {"fixed", "24", 0, 4, ""},
                                         {"head", "n", 1, 2, "x"}},
                            .alignment_bytes = 8});
}

std::vector<std::size_t> sizes_of(std::span<const StorageView> views) {
  std::vector<std::size_t> sizes;
  for (const StorageView& view : views) sizes.push_back(view.size_bytes);
  return sizes;
}

TEST(StorageArena, OneAllocationServesAllStorages) {
  CountingMemory memory;
  {
    StorageArena arena(small_plan(), memory, BeyondBound::kRefuse);
    EXPECT_EQ(memory.allocations, 0);
    const auto views = arena.bind(Values{16, 8, 0});
    EXPECT_EQ(sizes_of(views), (std::vector<std::size_t>{128, 64, 128, 24, 16}));
    EXPECT_EQ(views[4].address, views[0].address) << "a part lies at its owner's beginning";
    arena.bind(Values{1, 1, 0});
    EXPECT_EQ(memory.allocations, 1);
    EXPECT_EQ(memory.live_bytes, static_cast<std::size_t>(arena.plan().arena_bytes()));
  }
  EXPECT_EQ(memory.live_bytes, 0u);
}

TEST(StorageArena, OnlySizesThatUseAChangedVariableAreEvaluated) {
  CountingMemory memory;
  StorageArena arena(small_plan(), memory, BeyondBound::kRefuse);
  arena.bind(Values{4, 4, 0});
  EXPECT_EQ(arena.evaluations(), 5u);
  arena.bind(Values{5, 4, 0});
  EXPECT_EQ(arena.evaluations(), 5u + 3) << "x, z and head use n";
  const auto views = arena.bind(Values{5, 3, 0});
  EXPECT_EQ(arena.evaluations(), 8u + 2) << "y, by way of k, and z use m";
  EXPECT_EQ(sizes_of(views), (std::vector<std::size_t>{40, 24, 15, 24, 5}));
}

TEST(StorageArena, ValuesThatWereBoundBeforeEvaluateNothing) {
  CountingMemory memory;
  StorageArena arena(small_plan(), memory, BeyondBound::kRefuse);
  const auto first = arena.bind(Values{4, 4, 0});
  const std::vector<StorageView> views(first.begin(), first.end());
  arena.bind(Values{5, 4, 0});
  const std::uint64_t evaluations = arena.evaluations();
  const auto again = arena.bind(Values{4, 4, 99});  // a derived variable's value is not read
  EXPECT_TRUE(std::equal(again.begin(), again.end(), views.begin(), views.end()));
  EXPECT_EQ(arena.evaluations(), evaluations);
  EXPECT_EQ(arena.view_hits(), 1u);
  EXPECT_EQ(arena.view_misses(), 2u);
}

TEST(StorageArena, TheViewsNotUsedForLongestAreEvicted) {
  CountingMemory memory;
  StorageArena arena(small_plan(), memory, BeyondBound::kRefuse, {}, 2);
  arena.bind(Values{1, 1, 0});
  arena.bind(Values{2, 1, 0});
  arena.bind(Values{1, 1, 0});
  arena.bind(Values{3, 1, 0});  // evicts n = 2
  arena.bind(Values{1, 1, 0});
  EXPECT_EQ(arena.view_hits(), 2u);
  arena.bind(Values{2, 1, 0});
  EXPECT_EQ(arena.view_misses(), 4u);
}

TEST(StorageArena, AVariableBeyondItsBoundIsRefusedAndNothingIsLost) {
  CountingMemory memory;
  StorageArena arena(small_plan(), memory, BeyondBound::kRefuse);
  arena.bind(Values{4, 4, 0});
  std::string message;
  try {
    arena.bind(Values{17, 4, 0});
  } catch (const PlanError& error) {
    message = error.what();
  }
  EXPECT_EQ(message, "the variable 'n' is 17; accepted: 1 to 16");
  EXPECT_EQ(sizes_of(arena.bind(Values{4, 4, 0})), (std::vector<std::size_t>{32, 32, 16, 24, 4}));
}

TEST(StorageArena, AVariableBeyondItsBoundGrowsItByHalf) {
  CountingMemory memory;
  StorageArena arena(small_plan(), memory, BeyondBound::kGrow);
  arena.bind(Values{4, 4, 0});
  auto views = arena.bind(Values{17, 4, 0});
  EXPECT_EQ(arena.growths(), 1u);
  EXPECT_EQ(arena.plan().description().variables[0].upper, 24);
  EXPECT_EQ(arena.plan().description().variables[1].upper, 8) << "was large enough";
  EXPECT_EQ(views[0].size_bytes, 136u);
  arena.bind(Values{24, 4, 0});
  EXPECT_EQ(arena.growths(), 1u);
  arena.bind(Values{100, 4, 0});
  EXPECT_EQ(arena.plan().description().variables[0].upper, 100) << "half more is not enough";
  EXPECT_EQ(memory.live.size(), 1u) << "the former arenas are gone";
  EXPECT_EQ(memory.live_bytes, static_cast<std::size_t>(arena.plan().arena_bytes()));
}

TEST(StorageArena, StoragesThatDoNotFitFallBackToMemoryOfTheirOwn) {
  CountingMemory memory;
  {
    StorageArena arena(small_plan(), memory, BeyondBound::kFallBack, {}, 2);
    arena.bind(Values{4, 4, 0});
    const auto views = arena.bind(Values{20, 8, 0});
    EXPECT_EQ(arena.fall_backs(), 2u) << "x and z";
    EXPECT_EQ(memory.live.at(views[0].address), 160u);
    EXPECT_EQ(memory.live.at(views[2].address), 160u);
    EXPECT_EQ(views[4].address, views[0].address) << "the part goes with its owner";
    EXPECT_EQ(memory.live.count(views[1].address), 0u) << "y is in the arena";
    arena.bind(Values{1, 1, 0});
    EXPECT_EQ(memory.live.size(), 1u) << "the next run gives it back";
  }
  EXPECT_EQ(memory.live_bytes, 0u);
}

TEST(StorageArena, MemoryBeyondTheBoundIsThatOfTheLastRun) {
  CountingMemory memory;
  {
    StorageArena arena(small_plan(), memory, BeyondBound::kFallBack);
    const auto arena_bytes = static_cast<std::size_t>(arena.plan().arena_bytes());
    for (std::int64_t n = 20; n < 120; ++n) {
      arena.bind(Values{n, 1, 0});
      EXPECT_EQ(memory.live_bytes, arena_bytes + 8 * static_cast<std::size_t>(n)) << "x alone";
      if (n % 10 == 0) arena.bind(Values{4, 4, 0});
    }
    EXPECT_EQ(arena.view_hits(), 9u) << "views within the bound stay";
    memory.refuses = true;
    EXPECT_THROW(arena.bind(Values{20, 1, 0}), std::bad_alloc);
    EXPECT_EQ(memory.live_bytes, arena_bytes);
  }
  EXPECT_EQ(memory.live_bytes, 0u);
}

TEST(StorageArena, WithoutMemoryBindFailsAndCanBeRepeated) {
  CountingMemory memory;
  for (const BeyondBound policy : {BeyondBound::kGrow, BeyondBound::kFallBack}) {
    StorageArena arena(small_plan(), memory, policy);
    memory.refuses = true;
    EXPECT_THROW(arena.bind(Values{4, 4, 0}), std::bad_alloc);
    memory.refuses = false;
    arena.bind(Values{4, 4, 0});
    memory.refuses = true;
    EXPECT_THROW(arena.bind(Values{40, 4, 0}), std::bad_alloc);
    memory.refuses = false;
    const auto views = arena.bind(Values{40, 4, 0});
    EXPECT_EQ(views[0].size_bytes, 320u);
    std::fill_n(views[0].address, 320, 'x');
  }
  EXPECT_EQ(memory.live_bytes, 0u);
}

// Random plans and values: with every policy, live storages never overwrite each other's bytes.
TEST(StorageArena, RandomRunsNeverCorruptALiveStorage) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    PlanDescription description;
    description.alignment_bytes = 1 << (random() % 7);
    description.variables = {{"n", 1, 20, ""}, {"m", 1, 9, ""}, {"k", 0, 0, "(n + m) / 2"}};
    const char* sizes[] = {"n", "8 * m", "n * m", "k * 3 + 1", "max(n, m)", "17", "n % 5"};
    constexpr std::int64_t kSteps = 12;
    for (int number = 0; number < 14; ++number) {
      const auto first = static_cast<std::int64_t>(random() % kSteps);
      const auto end = first + 1 + static_cast<std::int64_t>(random() % (kSteps - first));
      description.storages.push_back(
          {"s" + std::to_string(number), sizes[random() % 7], first, end, ""});
    }
    CountingMemory memory;
    const auto policy = seed % 2 == 0 ? BeyondBound::kGrow : BeyondBound::kFallBack;
    StorageArena arena(StoragePlan::make(description), memory, policy, {}, 4);
    for (int run = 0; run < 25; ++run) {
      const std::int64_t most = run % 5 == 4 ? 60 : 20;
      const auto views =
          arena.bind(Values{1 + static_cast<std::int64_t>(random() % most),
                            1 + static_cast<std::int64_t>(random() % (most / 2 - 1)), 0});
      for (std::int64_t step = 0; step < kSteps; ++step) {
        for (std::size_t number = 0; number < views.size(); ++number) {
          const PlanStorage& storage = description.storages[number];
          const auto mark = static_cast<char>('a' + number);
          const StorageView& view = views[number];
          if (storage.first_use == step) std::fill_n(view.address, view.size_bytes, mark);
        }
        for (std::size_t number = 0; number < views.size(); ++number) {
          const PlanStorage& storage = description.storages[number];
          if (storage.first_use > step || storage.end_use <= step) continue;
          const StorageView& view = views[number];
          ASSERT_EQ(std::count(view.address, view.address + view.size_bytes,
                               static_cast<char>('a' + number)),
                    static_cast<std::ptrdiff_t>(view.size_bytes))
              << "seed " << seed << ", run " << run << ", step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace uvm
