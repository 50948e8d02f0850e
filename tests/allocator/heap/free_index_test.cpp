// The index of free blocks, compared with a plain ordered set, and the store of block records.
#include "allocator/heap/free_index.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "allocator/heap/page_block_store.hpp"

namespace uvm {
namespace {

PageBlock* block(PageBlockStore& blocks, std::size_t granules, std::uintptr_t place) {
  PageBlock* made = blocks.make(0);
  made->real.resize(granules * kGranule);
  made->real.address = reinterpret_cast<char*>(place * kGranule);
  return made;
}

struct BySizeThenAddress {
  bool operator()(const PageBlock* left, const PageBlock* right) const {
    return std::pair(left->size_bytes(), left->address()) <
           std::pair(right->size_bytes(), right->address());
  }
};
using Model = std::set<PageBlock*, BySizeThenAddress>;

// Returns the first size of the bin that is `more` bins above the bin of `size_bytes`. Bins are
// eighths of powers of two; up to 16 granules, each granule is a bin.
std::size_t bin_begin(std::size_t size_bytes, unsigned more) {
  std::uint64_t granules = size_bytes / kGranule;
  for (;; --more) {
    std::uint64_t step = granules < 16 ? 1 : std::bit_floor(granules) / 8;
    granules -= granules % step;
    if (more == 0) return granules * kGranule;
    granules += step;
  }
}

// The index's rule, in a plain way: the best fit in the bin of the size. Else the lowest address in
// the next four bins or, for small requests, below kPageGranularBytes. Else the lowest of all.
PageBlock* expected_fit(const Model& model, std::size_t size_bytes) {
  const std::size_t next = bin_begin(size_bytes, 1);
  auto lowest = [&](std::size_t end) {
    PageBlock* found = nullptr;
    for (PageBlock* one : model) {
      if (one->size_bytes() < next || one->size_bytes() >= end) continue;
      if (found == nullptr || one->address() < found->address()) found = one;
    }
    return found;
  };
  for (PageBlock* one : model) {
    if (one->size_bytes() >= size_bytes && one->size_bytes() < next) return one;
  }
  PageBlock* near =
      lowest(size_bytes < kPageGranularBytes ? kPageGranularBytes : bin_begin(size_bytes, 5));
  return near != nullptr ? near : lowest(SIZE_MAX);
}

class FreeIndexProperty : public ::testing::TestWithParam<unsigned> {};

TEST_P(FreeIndexProperty, AnswersAsOneOrderedSetWould) {
  std::mt19937_64 random(GetParam());
  // Sizes just below, at and just above every step of the bins.
  auto any_size = [&] {
    std::uint64_t base = std::uint64_t{1} << random() % 32;
    std::uint64_t eighths = base / 8 * (random() % 8);
    return std::max<std::uint64_t>(1, base + eighths + random() % 3 - 1);
  };
  PageBlockStore blocks;
  FreeIndex index(blocks);
  Model model;
  std::size_t bytes = 0;
  PageBlock* latest = nullptr;
  for (std::uintptr_t step = 1; step < 3000; ++step) {
    if (model.empty() || random() % 5 < 3) {
      // Each address comes once, in random order.
      latest = block(blocks, any_size(), step * 2654435761u % 4294967296u + 1);
      index.insert(latest);
      model.insert(latest);
      bytes += latest->size_bytes();
    } else {
      // The index stores the latest block apart from the others, so one time in four it is removed.
      auto chosen =
          latest != nullptr && random() % 4 == 0
              ? model.find(latest)
              : std::next(model.begin(), static_cast<std::ptrdiff_t>(random() % model.size()));
      if (*chosen == latest) latest = nullptr;
      bytes -= (*chosen)->size_bytes();
      index.erase(*chosen);
      model.erase(chosen);
    }
    // Sometimes asks for the exact size of the latest block, or for one granule less.
    const std::size_t granules = latest != nullptr && random() % 4 == 0
                                     ? latest->size_bytes() / kGranule - random() % 2
                                     : any_size();
    PageBlock* wanted = block(blocks, std::max<std::size_t>(1, granules), 0);
    ASSERT_EQ(index.fit(wanted->size_bytes()), expected_fit(model, wanted->size_bytes()));
    auto smallest = model.lower_bound(wanted);
    ASSERT_EQ(index.smallest_of(wanted->size_bytes()),
              smallest == model.end() ? nullptr : *smallest);
    ASSERT_EQ(index.smallest(), model.empty() ? nullptr : *model.begin());
    ASSERT_EQ(index.free_bytes(), bytes);
    ASSERT_EQ(index.empty(), model.empty());
    const PageBlock* largest = index.largest();
    ASSERT_EQ(largest == nullptr ? 0 : largest->size_bytes(),
              model.empty() ? 0 : (*model.rbegin())->size_bytes());
    if (step % 256 != 0) continue;
    PageBlock* at = index.smallest();
    for (PageBlock* expected : model) {
      ASSERT_EQ(at, expected);
      at = index.after(at);
    }
    ASSERT_EQ(at, nullptr);
  }
}

TEST(FreeIndex, ARequestThatNoBlockCanBeAsLargeAsFindsNone) {
  PageBlockStore blocks;
  FreeIndex index(blocks);
  EXPECT_EQ(index.fit(kGranule), nullptr);
  EXPECT_EQ(index.smallest(), nullptr);
  EXPECT_EQ(index.largest(), nullptr);
  PageBlock* largest = block(blocks, RealStorage::kMostSizeBytes / kGranule, 0);
  index.insert(largest);
  EXPECT_EQ(index.fit(RealStorage::kMostSizeBytes), largest);
  EXPECT_EQ(index.fit(RealStorage::kMostSizeBytes + kGranule), nullptr);
  EXPECT_EQ(index.fit(SIZE_MAX), nullptr);
  EXPECT_EQ(index.after(largest), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FreeIndexProperty, ::testing::Range(0u, 4u));

TEST(FreeIndex, OfEquallyLargeBlocksTheLowestIsTaken) {
  PageBlockStore blocks;
  FreeIndex index(blocks);
  PageBlock* high = block(blocks, 16, 300);
  PageBlock* low = block(blocks, 16, 100);
  PageBlock* middle = block(blocks, 16, 200);
  for (PageBlock* one : {high, low, middle}) index.insert(one);
  EXPECT_EQ(index.fit(15 * kGranule), low);
  EXPECT_EQ(index.after(low), middle);
  EXPECT_EQ(index.fit(17 * kGranule), nullptr);
}

constexpr std::size_t kMiBGranules = (std::size_t{1} << 20) / kGranule;

TEST(FreeIndex, ALargeRequestTakesWhatIsCloseBeforeWhatIsLow) {
  PageBlockStore blocks;
  FreeIndex index(blocks);
  PageBlock* far_too_large = block(blocks, 64 * kMiBGranules, 100);
  PageBlock* half_too_large = block(blocks, 11 * kMiBGranules, 300000);
  PageBlock* close = block(blocks, 8 * kMiBGranules + 1, 600000);
  for (PageBlock* one : {far_too_large, half_too_large, close}) index.insert(one);
  EXPECT_EQ(index.fit(8 * kMiBGranules * kGranule), close);
  index.erase(close);
  EXPECT_EQ(index.fit(8 * kMiBGranules * kGranule), half_too_large);
  index.erase(half_too_large);
  EXPECT_EQ(index.fit(8 * kMiBGranules * kGranule), far_too_large);
}

TEST(FreeIndex, OfBlocksThatAreFarTooLargeTheLowestIsTaken) {
  PageBlockStore blocks;
  FreeIndex index(blocks);
  PageBlock* smaller = block(blocks, 20 * kMiBGranules, 900000);
  PageBlock* lower = block(blocks, 64 * kMiBGranules, 100);
  for (PageBlock* one : {smaller, lower}) index.insert(one);
  EXPECT_EQ(index.fit(8 * kMiBGranules * kGranule), lower);
}

TEST(FreeIndex, ASmallRequestLeavesLargeBlocksAloneWhereASmallOneFits) {
  PageBlockStore blocks;
  FreeIndex index(blocks);
  PageBlock* large = block(blocks, 4 * kMiBGranules, 100);
  PageBlock* small = block(blocks, kMiBGranules - 1, 900000);
  PageBlock* smaller_but_higher = block(blocks, kMiBGranules / 2, 999000);
  for (PageBlock* one : {large, small, smaller_but_higher}) index.insert(one);
  EXPECT_EQ(index.fit(kMiBGranules / 4 * kGranule), small) << "the lowest of the small ones";
  index.erase(small);
  index.erase(smaller_but_higher);
  EXPECT_EQ(index.fit(kMiBGranules / 4 * kGranule), large);
}

TEST(PageBlockStore, NumbersStartAtOneAndNameTheirRecords) {
  PageBlockStore store;
  PageBlock* first = store.make(0);
  PageBlock* second = store.make(0);
  EXPECT_EQ(first->id, 1u);
  EXPECT_EQ(second->id, 2u);
  EXPECT_EQ(store.at(1), first);
  EXPECT_EQ(store.at(2), second);
}

TEST(PageBlockStore, ADroppedRecordIsUsedAgainUnderItsNumberAsOneThatNothingHappenedTo) {
  PageBlockStore store;
  store.make(0);
  PageBlock* dropped = store.make(0);
  dropped->kind = BlockKind::kPageGranular;
  dropped->has_no_side_state = false;
  dropped->exported = true;
  dropped->real.address = reinterpret_cast<char*>(4096);
  store.drop(dropped);
  EXPECT_EQ(store.at(2)->address(), nullptr) << "a stale number finds no address";
  PageBlock* again = store.make(0);
  EXPECT_EQ(again, dropped);
  EXPECT_EQ(again->id, 2u);
  EXPECT_TRUE(again->has_no_side_state);
  EXPECT_FALSE(again->exported);
  EXPECT_EQ(store.make(0)->id, 3u);
}

// Records of one stream may share a cache line; records of two streams may not.
TEST(PageBlockStore, RecordsOfDifferentStreamsShareNoPairOfLines) {
  PageBlockStore store;
  std::map<std::uintptr_t, StreamIndex> owner;  // by pair of lines: the stream
  std::mt19937 random(1);
  std::vector<PageBlock*> made;
  for (int step = 0; step < 5000; ++step) {
    if (!made.empty() && random() % 3 == 0) {
      std::swap(made[random() % made.size()], made.back());
      store.drop(made.back());
      made.pop_back();
    }
    const PoolIndex owning_pool = random() % 40;
    made.push_back(store.make(owning_pool));
    ASSERT_EQ(made.back()->owning_pool, owning_pool);
    const std::uintptr_t begin = address_of(made.back());
    for (std::uintptr_t pair = begin / 128; pair <= (begin + sizeof(PageBlock) - 1) / 128; ++pair) {
      ASSERT_EQ(owner.try_emplace(pair, stream_of(owning_pool)).first->second,
                stream_of(owning_pool));
    }
  }
}

TEST(PageBlockStore, RecordsStayWhereTheyAreWhenMoreAreMade) {
  PageBlockStore store;
  std::vector<PageBlock*> made;
  for (std::uint32_t id = 1; id <= 5000; ++id) made.push_back(store.make(0));
  for (std::uint32_t id = 1; id <= 5000; ++id) {
    ASSERT_EQ(store.at(id), made[id - 1]);
    ASSERT_EQ(store.at(id)->id, id);
  }
  EXPECT_EQ(store.bytes(), 5 * 1024 * sizeof(PageBlock));
}

}  // namespace
}  // namespace uvm
