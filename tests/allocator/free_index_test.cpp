// The index of free blocks against a plain ordered set, and the store of their records.
#include <uvmalloc/allocator/free_index.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <vector>

#include <uvmalloc/allocator/run_block_store.hpp>

namespace uvm {
namespace {

std::unique_ptr<RunBlock> block(std::size_t granules, std::uintptr_t place) {
  auto made = std::make_unique<RunBlock>();
  made->real.resize(granules * kGranule);
  made->real.address = reinterpret_cast<char*>(place * kGranule);
  return made;
}

struct BySizeThenAddress {
  bool operator()(const RunBlock* left, const RunBlock* right) const {
    return std::pair(left->size_bytes(), left->address()) <
           std::pair(right->size_bytes(), right->address());
  }
};

class FreeIndexProperty : public ::testing::TestWithParam<unsigned> {};

TEST_P(FreeIndexProperty, AnswersAsOneOrderedSetWould) {
  std::mt19937_64 random(GetParam());
  // Neighbouring sizes around every step of the bins, and sizes beyond the last.
  auto any_size = [&] {
    std::uint64_t base = std::uint64_t{1} << random() % 44;
    std::uint64_t eighths = base / 8 * (random() % 8);
    return std::max<std::uint64_t>(1, base + eighths + random() % 3 - 1);
  };
  FreeIndex index;
  std::vector<std::unique_ptr<RunBlock>> blocks;
  std::set<RunBlock*, BySizeThenAddress> model;
  std::size_t bytes = 0;
  for (std::uintptr_t step = 1; step < 4000; ++step) {
    if (model.empty() || random() % 5 < 3) {
      blocks.push_back(block(any_size(), step));
      index.insert(blocks.back().get());
      model.insert(blocks.back().get());
      bytes += blocks.back()->size_bytes();
    } else {
      auto chosen = std::next(model.begin(), static_cast<std::ptrdiff_t>(random() % model.size()));
      bytes -= (*chosen)->size_bytes();
      index.erase(*chosen);
      model.erase(chosen);
    }
    auto wanted = block(any_size(), 0);
    auto fit = model.lower_bound(wanted.get());
    ASSERT_EQ(index.best_fit(wanted->size_bytes()), fit == model.end() ? nullptr : *fit);
    ASSERT_EQ(index.smallest(), model.empty() ? nullptr : *model.begin());
    ASSERT_EQ(index.free_bytes(), bytes);
    ASSERT_EQ(index.empty(), model.empty());
    const RunBlock* largest = index.largest();
    ASSERT_EQ(largest == nullptr ? 0 : largest->size_bytes(),
              model.empty() ? 0 : (*model.rbegin())->size_bytes());
    if (step % 256 != 0) continue;
    RunBlock* at = index.smallest();
    for (RunBlock* expected : model) {
      ASSERT_EQ(at, expected);
      at = index.after(at);
    }
    ASSERT_EQ(at, nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FreeIndexProperty, ::testing::Range(0u, 4u));

TEST(FreeIndex, OfEquallyLargeBlocksTheLowestIsTaken) {
  FreeIndex index;
  auto high = block(16, 300);
  auto low = block(16, 100);
  auto middle = block(16, 200);
  for (RunBlock* one : {high.get(), low.get(), middle.get()}) index.insert(one);
  EXPECT_EQ(index.best_fit(15 * kGranule), low.get());
  EXPECT_EQ(index.after(low.get()), middle.get());
  EXPECT_EQ(index.best_fit(17 * kGranule), nullptr);
}

TEST(RunBlockStore, NumbersStartAtOneAndNameTheirRecords) {
  RunBlockStore store;
  RunBlock* first = store.make();
  RunBlock* second = store.make();
  EXPECT_EQ(first->id, 1u);
  EXPECT_EQ(second->id, 2u);
  EXPECT_EQ(store.at(1), first);
  EXPECT_EQ(store.at(2), second);
}

TEST(RunBlockStore, ADroppedRecordIsUsedAgainAsNewUnderItsNumber) {
  RunBlockStore store;
  store.make();
  RunBlock* dropped = store.make();
  dropped->kind = BlockKind::kWhole;
  dropped->plain = false;
  dropped->home = 7;
  dropped->real.address = reinterpret_cast<char*>(4096);
  store.drop(dropped);
  EXPECT_EQ(store.at(2)->address(), nullptr) << "a stale number finds no address";
  RunBlock* again = store.make();
  EXPECT_EQ(again, dropped);
  EXPECT_EQ(again->id, 2u);
  EXPECT_TRUE(again->plain);
  EXPECT_EQ(again->home, 0u);
  EXPECT_EQ(store.make()->id, 3u);
}

TEST(RunBlockStore, RecordsStayWhereTheyAreWhenMoreAreMade) {
  RunBlockStore store;
  std::vector<RunBlock*> made;
  for (std::uint32_t id = 1; id <= 5000; ++id) made.push_back(store.make());
  for (std::uint32_t id = 1; id <= 5000; ++id) {
    ASSERT_EQ(store.at(id), made[id - 1]);
    ASSERT_EQ(store.at(id)->id, id);
  }
  EXPECT_EQ(store.bytes(), 5 * 1024 * sizeof(RunBlock));
}

}  // namespace
}  // namespace uvm
