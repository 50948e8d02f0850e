// Starts of blocks in a page, compared with a plain array.
#include "allocator/heap/block_start_map.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace uvm {
namespace {

// The block that starts at each step, or 0 for none. Each block starts at one step.
class Starts {
 public:
  struct StepOfBlock {
    const std::map<std::uint32_t, std::size_t>& steps;
    std::size_t operator()(std::uint32_t block) const { return steps.at(block); }
  };
  StepOfBlock step_of_block() const { return {steps_}; }

  void add(std::size_t step, std::uint32_t block) {
    blocks_[step] = block;
    steps_[block] = step;
    table_bytes_ += table.add(step, block, step_of_block());
    ++count_;
  }
  void remove(std::size_t step) {
    steps_.erase(blocks_[step]);
    blocks_[step] = 0;
    table.remove(step);
    --count_;
  }
  void clear() {
    blocks_.fill(0);
    steps_.clear();
    table.clear();
    count_ = 0;
  }
  std::uint32_t at(std::size_t step) const { return blocks_[step]; }
  std::size_t count() const { return count_; }
  std::size_t table_bytes() const { return table_bytes_; }

  void expect_same() const {
    std::vector<std::uint32_t> in_order;
    std::uint32_t last = 0;
    for (std::size_t step = 0; step < blocks_.size(); ++step) {
      if (blocks_[step] != 0) {
        in_order.push_back(last = blocks_[step]);
        ASSERT_EQ(table.at(step), blocks_[step]) << "step " << step;
      } else if (const std::uint32_t other = table.at(step); other != 0) {
        ASSERT_TRUE(steps_.contains(other)) << "a block that is gone, at step " << step;
      }
      ASSERT_EQ(table.last_until(step, step_of_block()), last) << "step " << step;
    }
    std::vector<std::uint32_t> visited;
    table.each([&](std::uint32_t block) { visited.push_back(block); }, step_of_block());
    ASSERT_EQ(visited, in_order);
  }

  BlockStartMap table;

 private:
  std::array<std::uint32_t, BlockStartMap::kSteps> blocks_{};
  std::map<std::uint32_t, std::size_t> steps_;
  std::size_t count_ = 0;
  std::size_t table_bytes_ = 0;
};

// `most` is the largest number of starts; `first_block` is the number of the first block.
void run(std::uint32_t seed, std::size_t most, std::uint32_t first_block) {
  std::mt19937 random(seed);
  Starts starts;
  for (int change = 0; change < 3000; ++change) {
    const std::size_t step = random() % BlockStartMap::kSteps;
    if (starts.at(step) != 0) {
      starts.remove(step);
    } else if (starts.count() < most) {
      starts.add(step, first_block++);
    }
    if (change % 100 == 0) starts.expect_same();
    if (change % 1000 == 999) starts.clear();
  }
  starts.expect_same();
}

TEST(BlockStartMap, IsAnArrayForFewAndForMany) {
  for (std::size_t most : {1, 2, 3, 4, 5, 7, 20, 90, 512}) {
    for (std::uint32_t seed = 0; seed < 5; ++seed) run(seed, most, 1);
  }
}

TEST(BlockStartMap, NumbersOfAllSizesAreKept) {
  for (std::size_t most : {2, 3, 4, 10, 512}) {
    run(1, most, (1u << 22) - 500);
    run(2, most, 1u << 22);
    run(3, most, (1u << 23) - 500);
    run(4, most, ~0u - 5000);
  }
}

TEST(BlockStartMap, FewStartsCostNoTable) {
  Starts starts;
  starts.add(0, 1);
  starts.add(511, 2);
  EXPECT_EQ(starts.table_bytes(), 0u);
  EXPECT_EQ(sizeof(BlockStartMap), 8u);
}

TEST(BlockStartMap, BlocksOfOneSizeCostSixteenBytesEachAtMost) {
  for (std::size_t blocks = 4; blocks <= 512; blocks *= 2) {
    Starts starts;
    for (std::size_t i = 0; i < blocks; ++i) {
      starts.add(i * (BlockStartMap::kSteps / blocks), static_cast<std::uint32_t>(i + 1));
    }
    EXPECT_LE(starts.table_bytes(), 16 * blocks) << blocks << " blocks";
  }
}

TEST(BlockStartMap, AStartIsFoundWhileOthersChange) {
  Starts starts;
  starts.add(37, 99);
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> missed = 0;
  std::thread reader([&] {
    while (!over) missed += starts.table.at(37) != 99;
  });
  std::mt19937 random(1);
  for (std::uint32_t change = 0; change < 100000; ++change) {
    const std::size_t step = random() % BlockStartMap::kSteps;
    if (step == 37) continue;
    if (starts.at(step) != 0) {
      starts.remove(step);
    } else {
      starts.add(step, 1000 + change);
    }
  }
  over = true;
  reader.join();
  EXPECT_EQ(missed, 0u);
}

}  // namespace
}  // namespace uvm
