// Starts in a page, against a plain array.
#include <uvmalloc/allocator/start_table.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace uvm {
namespace {

using Model = std::array<std::uint32_t, StartTable::kSteps>;

void expect_same(const StartTable& table, const Model& model) {
  std::vector<std::uint32_t> in_order;
  std::uint32_t last = 0;
  for (std::size_t step = 0; step < model.size(); ++step) {
    ASSERT_EQ(table.at(step), model[step]) << "step " << step;
    if (model[step] != 0) {
      in_order.push_back(model[step]);
      last = model[step];
    }
    ASSERT_EQ(table.last_until(step), last) << "step " << step;
  }
  std::vector<std::uint32_t> visited;
  table.each([&](std::uint32_t block) { visited.push_back(block); });
  ASSERT_EQ(visited, in_order);
}

// `most`: how many starts there are at most; `largest`: the largest number of a block.
void run(std::uint32_t seed, std::size_t most, std::uint32_t largest) {
  std::mt19937 random(seed);
  StartTable table;
  Model model{};
  std::size_t live = 0;
  for (int change = 0; change < 3000; ++change) {
    std::size_t step = random() % model.size();
    bool add = model[step] == 0 ? live < most : random() % 3 == 0;
    std::uint32_t block = add ? 1 + random() % largest : 0;
    live += static_cast<std::size_t>(block != 0) - static_cast<std::size_t>(model[step] != 0);
    model[step] = block;
    table.set(step, block);
    if (change % 100 == 0) expect_same(table, model);
    if (change % 1000 == 999) {
      table.clear();
      model.fill(0);
      live = 0;
    }
  }
  expect_same(table, model);
}

TEST(StartTable, IsAnArrayForFewAndForMany) {
  for (std::size_t most : {1, 2, 3, 7, 20, 90, 512}) {
    for (std::uint32_t seed = 0; seed < 5; ++seed) run(seed, most, 1000);
  }
}

TEST(StartTable, NumbersOfAllSizesAreKept) {
  for (std::size_t most : {2, 10, 512}) {
    run(1, most, (1u << 22) - 1);
    run(2, most, 1u << 22);
    run(3, most, 1u << 23);
    run(4, most, ~0u - 1);
  }
}

TEST(StartTable, FewStartsCostNoTable) {
  StartTable table;
  table.set(0, 1);
  table.set(511, 2);
  EXPECT_EQ(table.bytes(), 0u);
  EXPECT_EQ(sizeof(StartTable), 8u);
}

TEST(StartTable, BlocksOfOneSizeCostTwentyFiveBytesEachAtMost) {
  for (std::size_t blocks = 4; blocks <= 512; blocks *= 2) {
    StartTable table;
    for (std::size_t i = 0; i < blocks; ++i) {
      table.set(i * (StartTable::kSteps / blocks), static_cast<std::uint32_t>(i + 1));
    }
    EXPECT_LE(table.bytes(), 25 * blocks) << blocks << " blocks";
  }
}

TEST(StartTable, AStartIsFoundWhileOthersChange) {
  StartTable table;
  table.set(37, 99);
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> missed = 0;
  std::thread reader([&] {
    while (!over) missed += table.at(37) != 99;
  });
  std::mt19937 random(1);
  for (int change = 0; change < 200000; ++change) {
    std::size_t step = random() % StartTable::kSteps;
    if (step == 37) continue;
    table.set(step, change % 2 == 0 ? 1 + random() % 1000 : 0);
  }
  over = true;
  reader.join();
  EXPECT_EQ(missed, 0u);
}

}  // namespace
}  // namespace uvm
