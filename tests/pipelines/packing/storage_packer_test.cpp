#include "pipelines/packing/storage_packer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>

#include "pipelines/packing/corner_search.hpp"
#include "pipelines/packing/first_fit.hpp"

#include "tests/support/hard_instances.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/sanitized.hpp"

namespace uvm {
namespace {

using testing::message_of;

Packing pack(const PackProblem& problem, const PackEffort& effort = {}) {
  Packing packing = StoragePacker(problem, effort).pack();
  EXPECT_EQ(problem.fault_of(packing.offsets), "");
  EXPECT_EQ(problem.height_of(packing.offsets), packing.height_bytes);
  return packing;
}

// Returns the lowest height of all packings, by trying the first fit of every order.
std::int64_t best_height(const PackProblem& problem) {
  std::vector<std::uint32_t> order(problem.size());
  std::iota(order.begin(), order.end(), 0U);
  std::int64_t best = PackProblem::kMostBytes;
  do {
    best = std::min(best, problem.height_of(first_fit(problem, order)));
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

std::vector<PackBuffer> random_buffers(std::mt19937& random, std::size_t count, bool with_empty) {
  std::vector<PackBuffer> buffers;
  for (std::size_t number = 0; number < count; ++number) {
    const auto lower = static_cast<std::int64_t>(random() % 6);
    const auto length = 1 + static_cast<std::int64_t>(random() % 4);
    buffers.push_back(
        {lower, lower + length, static_cast<std::int64_t>(random() % 9) + (with_empty ? 0 : 1)});
  }
  return buffers;
}

TEST(PackProblem, TheLowerBoundIsTheMostThatIsLiveAtOneTime) {
  const PackProblem problem({{0, 2, 5}, {1, 3, 4}, {2, 4, 7}, {10, 11, 3}});
  EXPECT_EQ(problem.lower_bound_bytes(), 11);
  EXPECT_EQ(problem.neighbors(1).size(), 2u);
  EXPECT_EQ(problem.neighbors(3).size(), 0u);
}

TEST(PackProblem, SectionsWithBuffersOfAnotherSectionAloneAreLeftOut) {
  const PackProblem problem({{0, 2, 5}, {1, 3, 4}, {2, 4, 7}, {10, 11, 3}});
  ASSERT_EQ(problem.section_count(), 3u);
  const std::vector<std::vector<std::uint32_t>> live{{0, 1}, {1, 2}, {3}};
  for (std::size_t section = 0; section < 3; ++section) {
    EXPECT_TRUE(std::ranges::equal(problem.live(section), live[section])) << section;
  }
  EXPECT_EQ(problem.first_section(1), 0u);
  EXPECT_EQ(problem.end_section(1), 2u);
}

TEST(PackProblem, WrongBuffersAreNamed) {
  EXPECT_EQ(message_of([] {
              PackProblem({{0, 1, 1}, {3, 3, 1}});
            }),
            "buffer 1 is live from 3 to 3: at no time");
  EXPECT_EQ(message_of([] {
              PackProblem({{0, 1, -4}});
            }),
            "buffer 0 has the size -4; accepted: 0 or more");
  EXPECT_EQ(message_of([] {
              PackProblem({{0, 1, PackProblem::kMostBytes}, {2, 3, 1}});
            }),
            "the buffers up to 1 have more than 4611686018427387904 bytes together");
}

TEST(PackProblem, OverlapsAreFound) {
  const PackProblem problem({{0, 2, 5}, {1, 3, 4}, {2, 4, 7}});
  EXPECT_EQ(problem.fault_of(std::vector<std::int64_t>{0, 5, 9}), "");
  EXPECT_EQ(problem.fault_of(std::vector<std::int64_t>{0, 7, 0}), "");
  EXPECT_EQ(problem.fault_of(std::vector<std::int64_t>{0, 4, 9}), "buffers 0 and 1 overlap");
  EXPECT_EQ(problem.fault_of(std::vector<std::int64_t>{0, 6, -1}), "buffer 2 lies at -1");
}

TEST(StoragePacker, NothingIsPackedInNoMemory) {
  EXPECT_EQ(pack(PackProblem({})).height_bytes, 0);
  EXPECT_EQ(pack(PackProblem({{0, 1, 0}, {0, 2, 0}})).height_bytes, 0);
}

TEST(StoragePacker, BuffersThatAreNeverLiveTogetherShareTheirMemory) {
  EXPECT_EQ(pack(PackProblem({{0, 1, 10}, {1, 2, 7}, {2, 3, 10}})).height_bytes, 10);
}

TEST(StoragePacker, SmallProblemsArePackedAsWellAsPossible) {
  std::mt19937 random(11);
  for (int round = 0; round < testing::steps(60, 6); ++round) {
    const PackProblem problem(random_buffers(random, 7, true));
    const std::int64_t best = best_height(problem);
    ASSERT_EQ(pack(problem).height_bytes, best) << "round " << round;
  }
}

// Instances with the bound 5 and a best packing of height 6.
const std::vector<std::vector<PackBuffer>>& instances_without_packing_at_the_bound() {
  static const std::vector<std::vector<PackBuffer>> all{{{0, 3, 1},
                                                         {2, 6, 1},
                                                         {0, 1, 4},
                                                         {1, 5, 2},
                                                         {5, 6, 4},
                                                         {2, 4, 1},
                                                         {3, 4, 1},
                                                         {4, 5, 2},
                                                         {1, 2, 2}},
                                                        {{0, 1, 3},
                                                         {2, 6, 1},
                                                         {0, 3, 2},
                                                         {2, 3, 1},
                                                         {1, 2, 2},
                                                         {1, 5, 1},
                                                         {5, 6, 3},
                                                         {4, 6, 1},
                                                         {3, 4, 3},
                                                         {4, 5, 2}},
                                                        {{0, 4, 1},
                                                         {5, 6, 4},
                                                         {2, 6, 1},
                                                         {0, 1, 4},
                                                         {1, 5, 1},
                                                         {1, 2, 3},
                                                         {4, 5, 2},
                                                         {3, 5, 1},
                                                         {2, 3, 2},
                                                         {3, 4, 1}}};
  return all;
}

constexpr std::array kOrders{CornerOrder::kLength, CornerOrder::kSize, CornerOrder::kArea,
                             CornerOrder::kLowest};

TEST(CornerSearch, FindsTheBestHeightAndProvesThatLessIsImpossible) {
  for (const auto& buffers : instances_without_packing_at_the_bound()) {
    const PackProblem problem(buffers);
    ASSERT_EQ(problem.lower_bound_bytes(), 5);
    for (const auto order : kOrders) {
      CornerSearch search(problem);
      EXPECT_FALSE(search.fit(5, order, 10'000'000, 0.5, 1));
      EXPECT_TRUE(search.is_exhausted());
      const auto found = search.fit(6, order, 10'000'000, 0.5, 1);
      ASSERT_TRUE(found);
      EXPECT_EQ(problem.fault_of(*found), "");
      EXPECT_EQ(problem.height_of(*found), 6);
    }
  }
}

TEST(CornerSearch, FindsTheBestHeightOfRandomProblems) {
  std::mt19937 random(6);
  for (int round = 0; round < testing::steps(60, 12); ++round) {
    const PackProblem problem(random_buffers(random, 7, round % 2 == 0));
    const std::int64_t best = best_height(problem);
    CornerSearch search(problem);
    const auto order = kOrders[static_cast<std::size_t>(round) % kOrders.size()];
    const auto found = search.fit(best, order, 1'000'000, round % 4 == 0 ? 0.5 : 0, random());
    ASSERT_TRUE(found) << "round " << round;
    EXPECT_EQ(problem.fault_of(*found), "");
    EXPECT_LE(problem.height_of(*found), best);
    EXPECT_FALSE(search.fit(best - 1, order, 1'000'000)) << "round " << round;
  }
}

// Groups of buffers that are never live together: eight copies of a problem with many packings,
// then a problem without a packing at its bound.
TEST(CornerSearch, AGroupWithoutAPackingIsNotTriedAgainForEachPackingOfOthers) {
  std::mt19937 random(3);
  std::vector<PackBuffer> buffers;
  for (std::int64_t copy = 0; copy < 8; ++copy) {
    for (const PackBuffer& each : random_buffers(random, 5, false)) {
      buffers.push_back({each.lower + 20 * copy, each.upper + 20 * copy, 1});
    }
  }
  for (const PackBuffer& each : instances_without_packing_at_the_bound().front()) {
    buffers.push_back({each.lower + 160, each.upper + 160, each.size_bytes});
  }
  const PackProblem problem(buffers);
  ASSERT_EQ(problem.lower_bound_bytes(), 5);
  for (const auto order : kOrders) {
    CornerSearch search(problem);
    EXPECT_FALSE(search.fit(5, order, 100'000));
    EXPECT_TRUE(search.is_exhausted());
    EXPECT_TRUE(search.fit(6, order, 100'000));
  }
}

TEST(CornerSearch, ManyBuffersNeedNoDeepStack) {
  std::vector<PackBuffer> buffers;
  for (std::int64_t step = 0; step < 5'000; ++step) buffers.push_back({step, step + 2, 1});
  const PackProblem problem(buffers);
  CornerSearch search(problem);
  const auto found = search.fit(2, CornerOrder::kLength, std::size_t{1} << 40);
  ASSERT_TRUE(found);
  EXPECT_EQ(problem.fault_of(*found), "");
}

TEST(CornerSearch, StopsAfterSoManySteps) {
  const PackProblem problem(testing::cut_rectangle(2, 130, 260, 1 << 20));
  CornerSearch search(problem);
  EXPECT_FALSE(search.fit(problem.lower_bound_bytes(), CornerOrder::kArea, 20'000));
  EXPECT_FALSE(search.is_exhausted());
  EXPECT_LE(search.steps(), 40'000u) << "it stops at the next choice";
}

TEST(CornerSearch, FillsMemoryThatIsFullAtAllTimes) {
  const auto seeds = static_cast<std::uint32_t>(testing::steps(4, 1));
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const PackProblem problem(testing::cut_rectangle(seed, 100, 200, 1 << 20));
    CornerSearch search(problem);
    // A wrong first choice costs most of a search, so each restart begins with another order.
    std::optional<std::vector<std::int64_t>> found;
    for (std::uint32_t restart = 0; restart < 60 && !found; ++restart) {
      found = search.fit(1 << 20, CornerOrder::kLength, 4'000'000, 0.5, restart);
    }
    ASSERT_TRUE(found) << "seed " << seed;
    EXPECT_EQ(problem.fault_of(*found), "");
    EXPECT_EQ(problem.height_of(*found), 1 << 20);
  }
}

TEST(StoragePacker, ProblemsWithoutAPackingAtTheBoundArePackedAsWellAsPossible) {
  for (const auto& buffers : instances_without_packing_at_the_bound()) {
    EXPECT_EQ(pack(PackProblem(buffers)).height_bytes, 6);
  }
}

TEST(StoragePacker, HardInstancesReachTheLowerBound) {
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    const PackProblem cut(testing::cut_rectangle(seed, 80 + 30 * seed, 300, 1 << 20));
    EXPECT_EQ(pack(cut).height_bytes, cut.lower_bound_bytes()) << seed;
    const PackProblem layers(testing::layers_of_program(seed, 200));
    EXPECT_EQ(pack(layers).height_bytes, layers.lower_bound_bytes()) << seed;
  }
}

TEST(StoragePacker, TheSameSeedGivesTheSamePacking) {
  const PackProblem problem(testing::cut_rectangle(2, 80, 200, 5000));
  PackEffort effort;
  effort.steps = 300'000;
  EXPECT_EQ(pack(problem, effort).offsets, pack(problem, effort).offsets);
}

}  // namespace
}  // namespace uvm
