// Where the pools place blocks; every address is stated. The addresses have no memory behind them.
#include "allocator/heap/block_pools.hpp"
#include <uvmalloc/configuration.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

class BlockPoolsTest : public ::testing::Test {
 protected:
  BlockPoolsTest() {
    auto made = std::make_unique<Span>();
    made->base = reinterpret_cast<char*>(std::uintptr_t{1} << 40);
    made->size_bytes = 16 * kPageBytes;
    made->facade = Facade::kDevice;
    spans.push_back(std::move(made));
    base = spans[0]->base;
    stream = pools.table().open({Facade::kDevice, 0, nullptr});
  }
  void TearDown() override { pools.check_invariants(spans); }

  Pool& pool(PoolClass of) { return pools.at(pool_of(stream, of)); }
  char* page(std::size_t number) const { return base + number * kPageBytes; }

  // Adds pages of the span to the pool as free blocks.
  void add(PoolClass of, std::size_t number, std::size_t count,
           const SegmentPlacement& placement = {}) {
    pools.put(
        pools.add_pages({spans[0].get(), page(number), count * kPageBytes, placement}, pool(of)),
        pool(of));
  }
  // Returns a live block for a request, or nullptr if nothing fits.
  PageBlock* take(PoolClass of, std::size_t size_bytes) {
    PageBlock* block = pools.take(pool(of), size_bytes);
    if (block == nullptr) return nullptr;
    block = pools.trim(block, size_bytes);
    block->real.references = 1;
    block->set(BlockState::kLive);
    return block;
  }
  void give_back(PageBlock* block) {
    block->set(BlockState::kReleasing);
    pools.put(block, pools.at(block->owning_pool));
  }
  std::vector<std::pair<char*, std::size_t>> free_blocks(PoolClass of) {
    std::vector<std::pair<char*, std::size_t>> out;
    FreeIndex& own = pool(of).own;
    for (PageBlock* block = own.smallest(); block != nullptr; block = own.after(block)) {
      out.emplace_back(block->address(), block->size_bytes());
    }
    return out;
  }
  using Free = std::vector<std::pair<char*, std::size_t>>;
  std::size_t free_before(PoolClass of, const char* boundary) {
    return pools.free_bytes_before(pool(of), *spans[0], boundary);
  }
  std::size_t free_after(PoolClass of, const char* boundary) {
    return pools.free_bytes_after(pool(of), *spans[0], boundary);
  }

  std::vector<std::unique_ptr<Span>> spans;
  char* base = nullptr;
  BlockPools pools{policy::kLargeHitsRequired};
  StreamIndex stream{};
};

TEST_F(BlockPoolsTest, AStreamHasTwoPoolsSideBySide) {
  const StreamIndex other = pools.table().open({Facade::kDevice, 0, &base});
  EXPECT_EQ(position(stream), 0u);
  EXPECT_EQ(position(other), 1u);
  EXPECT_EQ(pools.table().open({Facade::kDevice, 0, nullptr}), stream);
  EXPECT_EQ(pool(PoolClass::kPacked).pool_class, PoolClass::kPacked);
  EXPECT_EQ(pool(PoolClass::kPageGranular).pool_class, PoolClass::kPageGranular);
}

TEST_F(BlockPoolsTest, BlocksAreCutFromTheFrontAndJoinAgain) {
  add(PoolClass::kPacked, 0, 1);
  PageBlock* a = take(PoolClass::kPacked, 64 * kKiB);
  PageBlock* b = take(PoolClass::kPacked, 4608);
  PageBlock* c = take(PoolClass::kPacked, 100 * kKiB);
  EXPECT_EQ(a->address(), base);
  EXPECT_EQ(b->address(), base + 64 * kKiB);
  EXPECT_EQ(c->address(), base + 64 * kKiB + 4608);
  char* rest = c->end();
  give_back(a);
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{base, 64 * kKiB}, {rest, kPageBytes - 164 * kKiB - 4608}}));
  give_back(c);
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{base, 64 * kKiB}, {base + 64 * kKiB + 4608, kPageBytes - 64 * kKiB - 4608}}));
  give_back(b);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{base, kPageBytes}}));
}

TEST_F(BlockPoolsTest, ARestTooSmallToBeABlockStaysWithItsNeighbour) {
  const std::size_t least = kSmallestPacked;
  add(PoolClass::kPacked, 0, 1);
  take(PoolClass::kPacked, kPageBytes - 100 * kKiB);
  PageBlock* all_but_little = take(PoolClass::kPacked, 100 * kKiB - least + kGranule);
  EXPECT_EQ(all_but_little->size_bytes(), 100 * kKiB);
  give_back(all_but_little);
  PageBlock* less = take(PoolClass::kPacked, 100 * kKiB - least);
  EXPECT_EQ(less->size_bytes(), 100 * kKiB - least);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{less->end(), least}}));
}

TEST_F(BlockPoolsTest, LessThanAThirtySecondOfARequestStaysWithItsBlock) {
  add(PoolClass::kPacked, 0, 1);
  PageBlock* other = take(PoolClass::kPacked, kPageGranularBytes);
  PageBlock* block = take(PoolClass::kPacked, kPageGranularBytes - 31 * kKiB);
  EXPECT_EQ(block->size_bytes(), kPageGranularBytes);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), Free{});
  give_back(other);
  PageBlock* less = take(PoolClass::kPacked, 992 * kKiB);
  EXPECT_EQ(less->size_bytes(), 992 * kKiB);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{less->end(), 32 * kKiB}})) << "just as much";
}

TEST_F(BlockPoolsTest, AQuarterOfAPageIsCutOffHoweverLargeTheRequest) {
  constexpr std::size_t kQuarter = kPageBytes / 4;
  add(PoolClass::kPacked, 0, 16);
  PageBlock* block = take(PoolClass::kPacked, 16 * kPageBytes - kQuarter + kGranule);
  EXPECT_EQ(block->size_bytes(), 16 * kPageBytes);
  give_back(block);
  block = take(PoolClass::kPacked, 16 * kPageBytes - kQuarter);
  EXPECT_EQ(block->size_bytes(), 16 * kPageBytes - kQuarter);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{block->end(), kQuarter}}));
}

TEST_F(BlockPoolsTest, WhenPagesAreSparedBlocksAreCutWhereTheyCutTheFewestPages) {
  add(PoolClass::kPacked, 0, 8);
  PageBlock* odd = take(PoolClass::kPacked, kPageGranularBytes);
  PageBlock* before = take(PoolClass::kPacked, kPageBytes);
  EXPECT_EQ(before->address(), odd->end()) << "with pages to spare";
  pools.conserve_pages();
  PageBlock* block = take(PoolClass::kPacked, 2 * kPageBytes);
  EXPECT_EQ(block->address(), page(2));
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{before->end(), kPageGranularBytes}, {page(4), 4 * kPageBytes}}));
  PageBlock* no_multiple = take(PoolClass::kPacked, kPageBytes + kGranule);
  EXPECT_EQ(no_multiple->address(), page(4));
  PageBlock* up_to_the_end = take(PoolClass::kPacked, 3 * kPageBytes - kGranule);
  EXPECT_EQ(up_to_the_end->address(), no_multiple->end());
}

TEST_F(BlockPoolsTest, ABlockThatEndsBehindTheLastWholePageStaysWhereItTakesOneLess) {
  add(PoolClass::kPacked, 0, 4);
  PageBlock* low = take(PoolClass::kPacked, kPageGranularBytes);
  PageBlock* rest = take(PoolClass::kPacked, 3 * kPageBytes + kGranule);
  PageBlock* high = take(PoolClass::kPacked, kPageGranularBytes - kGranule);
  EXPECT_EQ(high->end(), page(4));
  give_back(rest);
  pools.conserve_pages();
  PageBlock* block = take(PoolClass::kPacked, 3 * kPageBytes);
  EXPECT_EQ(block->address(), low->end()) << "two whole pages and parts of two others";
}

TEST_F(BlockPoolsTest, WhenPagesAreSparedABlockIsCutFromTheHighEndWhereThatTakesAPageLess) {
  constexpr std::size_t kHalf = kPageBytes / 2;
  add(PoolClass::kPacked, 0, 4);
  PageBlock* low = take(PoolClass::kPacked, kHalf + kHalf / 2);
  PageBlock* rest = take(PoolClass::kPacked, 3 * kPageBytes - kHalf / 2);
  PageBlock* high = take(PoolClass::kPacked, kHalf);
  ASSERT_EQ(rest->address(), low->end());
  ASSERT_EQ(high->end(), page(4));
  give_back(rest);
  pools.conserve_pages();
  PageBlock* block = take(PoolClass::kPacked, kPageBytes + kHalf);
  EXPECT_EQ(block->end(), high->address()) << "one whole page; at the low end it would take two";
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{low->end(), kPageBytes + kHalf / 2}}));
}

TEST_F(BlockPoolsTest, AlignedBytesAreCutOutAndWhatIsAroundThemStays) {
  constexpr std::size_t kQuarter = 256 * kKiB;
  add(PoolClass::kPacked, 0, 2);
  PageBlock* odd = take(PoolClass::kPacked, 200 * kKiB);
  PageBlock* block = pools.take_aligned(pool(PoolClass::kPacked), kQuarter);
  EXPECT_EQ(block->address(), base + kQuarter);
  EXPECT_EQ(block->size_bytes(), kQuarter);
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{odd->end(), 56 * kKiB}, {block->end(), 2 * kPageBytes - 2 * kQuarter}}));
  give_back(block);
  give_back(odd);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{base, 2 * kPageBytes}}));
}

TEST_F(BlockPoolsTest, AlignedBytesAreLookedForWhereTheyMayJustFit) {
  constexpr std::size_t kQuarter = 256 * kKiB;
  add(PoolClass::kPacked, 0, 1);
  PageBlock* first_odd = take(PoolClass::kPacked, 4608);
  PageBlock* misaligned = take(PoolClass::kPacked, 2 * kQuarter - 4608 - kGranule);
  PageBlock* before = take(PoolClass::kPacked, 5120);
  take(PoolClass::kPacked, kQuarter - 4608);
  PageBlock* exact = take(PoolClass::kPacked, kQuarter);
  ASSERT_EQ(exact->address(), base + 3 * kQuarter);
  take(PoolClass::kPacked, kPageBytes - 4 * kQuarter);
  ASSERT_TRUE(free_blocks(PoolClass::kPacked).empty());
  EXPECT_EQ(pools.take_aligned(pool(PoolClass::kPacked), kQuarter), nullptr);
  give_back(misaligned);
  EXPECT_EQ(pools.take_aligned(pool(PoolClass::kPacked), kQuarter), nullptr)
      << "a granule is missing at the end";
  give_back(exact);
  EXPECT_EQ(pools.take_aligned(pool(PoolClass::kPacked), kQuarter), exact);
  give_back(exact);
  give_back(before);
  give_back(first_odd);
}

TEST_F(BlockPoolsTest, WhatAnArenaHasIsNobodysAndItsObjectsAreFound) {
  constexpr std::size_t kQuarter = 256 * kKiB;
  add(PoolClass::kPacked, 0, 1);
  PageBlock* low = take(PoolClass::kPacked, kQuarter);
  PageBlock* run = pools.take_aligned(pool(PoolClass::kPacked), kQuarter);
  PageBlock* high = take(PoolClass::kPacked, kQuarter);
  pools.directory().begin_small_run(run);
  char* part = run->address();
  EXPECT_EQ(part, base + kQuarter);
  for (char* address : {part, part + 1000, part + kQuarter - 1}) {
    EXPECT_EQ(pools.directory().find(address), nullptr);
    EXPECT_TRUE(pools.directory().is_ours(address));
  }
  Block* first_object = pools.directory().add_small(part, 512);
  Block* last_object = pools.directory().add_small(part + kQuarter - 4096, 4096);
  for (Block* object : {first_object, last_object}) {
    object->real.references = 1;
    object->set(BlockState::kLive);
    EXPECT_EQ(pools.directory().block_at(object->address()), object);
    EXPECT_EQ(pools.directory().find(object->end() - 1), object);
    EXPECT_EQ(stream_of(pools.directory().owning_pool_of(*object)), stream);
    EXPECT_EQ(stream_of(object->pool), stream);
    EXPECT_EQ(pools.directory().span_of(*object), spans[0].get());
    EXPECT_EQ(pools.directory().placement_of(*object), pools.directory().placement_of(*low));
  }
  EXPECT_EQ(pools.directory().find(first_object->end()), nullptr);
  for (PageBlock* block : {low, high}) {
    EXPECT_EQ(pools.directory().block_at(block->address()), block);
    EXPECT_EQ(pools.directory().find(block->end() - 1), block);
  }
  std::vector<const Block*> seen;
  pools.directory().each_block(
      *spans[0], [&](const Block& block) { seen.push_back(&block); },
      [&](const PageBlock& of_arena) { seen.push_back(&of_arena); });
  ASSERT_EQ(seen.size(), 6u);
  seen.pop_back();  // the free block
  EXPECT_EQ(seen, (std::vector<const Block*>{low, run, first_object, last_object, high}));
  pools.check_invariants(spans);
  pools.directory().remove_small(first_object);
  pools.directory().remove_small(last_object);
  EXPECT_EQ(pools.directory().find(part), nullptr);
  give_back(low);
  give_back(high);
  EXPECT_EQ(free_blocks(PoolClass::kPacked).size(), 2u) << "none is joined with it";
  EXPECT_EQ(pools.directory().end_small_run(part), run);
  give_back(run);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{base, kPageBytes}}));
}

TEST_F(BlockPoolsTest, APageWithPartsOfArenasIsSharedAgainWhenTheLastIsBack) {
  constexpr std::size_t kQuarter = 256 * kKiB;
  add(PoolClass::kPacked, 0, 2);
  PageBlock* reaching = take(PoolClass::kPacked, 7 * kQuarter);
  PageBlock* of_first = pools.take_aligned(pool(PoolClass::kPacked), kQuarter);
  PageBlock* of_second = pools.take_aligned(pool(PoolClass::kPacked), kQuarter);
  ASSERT_EQ(of_second->address(), page(1));
  const std::size_t before = pools.metadata_bytes();
  pools.directory().begin_small_run(of_first);
  const std::size_t tables_of_one = pools.metadata_bytes() - before;
  pools.directory().begin_small_run(of_second);
  EXPECT_EQ(pools.metadata_bytes() - before, 2 * tables_of_one);
  Block* object = pools.directory().add_small(page(1), 1024);
  EXPECT_DEATH(pools.directory().end_small_run(page(1)), "an arena gives back live small objects");
  pools.directory().remove_small(object);
  for (PageBlock* run : {of_first, of_second})
    give_back(pools.directory().end_small_run(run->address()));
  give_back(reaching);
  EXPECT_EQ(pools.take_pages(pool(PoolClass::kPacked), 2 * kPageBytes).base, base);
  // Later runs reuse the tables of the runs that were given back.
  add(PoolClass::kPacked, 4, 1);
  pools.directory().begin_small_run(pools.take_aligned(pool(PoolClass::kPacked), kQuarter));
  EXPECT_LE(pools.metadata_bytes() - before, 3 * tables_of_one);
  EXPECT_EQ(pools.directory().find(page(4)), nullptr);
}

TEST_F(BlockPoolsTest, PagesBesideARunExtendItOnBothSides) {
  add(PoolClass::kPacked, 4, 1);
  PageBlock* block = take(PoolClass::kPacked, kPageBytes - 64 * kKiB);
  EXPECT_EQ(free_before(PoolClass::kPacked, page(5)), 64 * kKiB);
  EXPECT_EQ(free_after(PoolClass::kPacked, page(4)), 0u) << "in use";
  EXPECT_EQ(free_before(PoolClass::kPageGranular, page(5)), 0u) << "not that pool's";
  add(PoolClass::kPacked, 5, 1);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{block->end(), kPageBytes + 64 * kKiB}}));
  EXPECT_EQ(free_before(PoolClass::kPacked, page(6)), kPageBytes + 64 * kKiB);
  EXPECT_EQ(free_before(PoolClass::kPacked, page(7)), 0u) << "nobody's";
  add(PoolClass::kPacked, 3, 1);
  EXPECT_EQ(free_after(PoolClass::kPacked, page(3)), kPageBytes);
  give_back(block);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{page(3), 3 * kPageBytes}}));
}

TEST_F(BlockPoolsTest, PagesAdvisedOtherwiseDoNotExtendARun) {
  add(PoolClass::kPacked, 0, 1, {Place::host(), {}, 1});
  EXPECT_EQ(free_before(PoolClass::kPacked, page(1)), 0u);
  EXPECT_EQ(free_after(PoolClass::kPacked, page(0)), 0u);
  add(PoolClass::kPacked, 1, 1);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{page(0), kPageBytes}, {page(1), kPageBytes}}));
}

TEST_F(BlockPoolsTest, PagesOfTheSpanBesideAreNotJoined) {
  auto beside = std::make_unique<Span>();
  beside->base = page(16);
  beside->size_bytes = 4 * kPageBytes;
  beside->facade = Facade::kDevice;
  spans.push_back(std::move(beside));
  for (PoolClass of : {PoolClass::kPacked, PoolClass::kPageGranular}) {
    add(of, 15, 1);
    pools.put(pools.add_pages({spans[1].get(), page(16), kPageBytes, {}}, pool(of)), pool(of));
    EXPECT_EQ(free_blocks(of), (Free{{page(15), kPageBytes}, {page(16), kPageBytes}}));
    for (int i = 0; i < 2; ++i) pools.take_pages(pool(of), kPageBytes);
    EXPECT_TRUE(free_blocks(of).empty());
  }
}

TEST_F(BlockPoolsTest, APageOutOfTheMiddleOfARunLeavesBothSides) {
  add(PoolClass::kPacked, 0, 4);
  PageBlock* front = take(PoolClass::kPacked, 64 * kKiB);
  PageRun taken = pools.take_pages(pool(PoolClass::kPacked), kPageBytes);
  EXPECT_EQ(taken.base, page(1));
  EXPECT_EQ(taken.size_bytes, kPageBytes);
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{front->end(), kPageBytes - 64 * kKiB}, {page(2), 2 * kPageBytes}}));
  EXPECT_EQ(pools.directory().find(page(1)), nullptr);
  EXPECT_FALSE(pools.directory().is_ours(page(1)));
  give_back(front);
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{page(0), kPageBytes}, {page(2), 2 * kPageBytes}}));
  add(PoolClass::kPacked, 1, 1);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{page(0), 4 * kPageBytes}})) << "closed again";
}

TEST_F(BlockPoolsTest, ATailTooSmallToBeABlockKeepsItsPage) {
  add(PoolClass::kPacked, 0, 3);
  PageBlock* front = take(PoolClass::kPacked, 2 * kPageBytes + kGranule);
  PageBlock* behind = take(PoolClass::kPacked, 64 * kKiB);
  ASSERT_EQ(behind->address(), page(2) + kGranule);
  give_back(front);
  EXPECT_EQ(pools.take_pages(pool(PoolClass::kPacked), 2 * kPageBytes).base, nullptr);
  EXPECT_EQ(pools.take_pages(pool(PoolClass::kPacked), kPageBytes).base, page(0));
  EXPECT_EQ(free_blocks(PoolClass::kPacked).back(), (std::pair{page(1), kPageBytes + kGranule}));
  EXPECT_EQ(pools.take_pages(pool(PoolClass::kPacked), kPageBytes).base, nullptr);
}

TEST_F(BlockPoolsTest, WhollyFreePagesAreReleasedAndWhatIsAroundThemStays) {
  add(PoolClass::kPacked, 0, 4);
  PageBlock* front = take(PoolClass::kPacked, 64 * kKiB);
  PageBlock* middle = take(PoolClass::kPacked, 3 * kPageBytes);
  give_back(front);
  auto release = [&](std::size_t most_bytes) {
    Free released;
    for (PageBlock* block : pools.with_pages(pool(PoolClass::kPacked), false)) {
      const PageRun pages = pools.release_pages(block, most_bytes);
      if (pages.base != nullptr) released.emplace_back(pages.base, pages.size_bytes);
    }
    return released;
  };
  EXPECT_EQ(release(SIZE_MAX), Free{}) << "no page is wholly free";
  give_back(middle);
  EXPECT_EQ(release(kPageBytes + 5), (Free{{page(0), kPageBytes}}));
  EXPECT_EQ(release(SIZE_MAX), (Free{{page(1), 3 * kPageBytes}}));
  EXPECT_TRUE(free_blocks(PoolClass::kPacked).empty());
}

TEST_F(BlockPoolsTest, AnAddressInALiveBlockFindsItFromEveryPageItReachesInto) {
  add(PoolClass::kPacked, 0, 4);
  take(PoolClass::kPacked, 64 * kKiB);
  PageBlock* block = take(PoolClass::kPacked, 3 * kPageBytes);
  for (char* address :
       {block->address(), page(1) - 1, page(1), page(2) + 12345, page(3), block->end() - 1}) {
    EXPECT_EQ(pools.directory().find(address), block) << (address - base);
  }
  EXPECT_NE(pools.directory().find(block->end()), block);
  EXPECT_EQ(pools.directory().block_at(block->address()), block);
  EXPECT_EQ(pools.directory().block_at(page(1)), nullptr);
}

TEST_F(BlockPoolsTest, OfAWholeBlockTheLargerPartKeepsTheRecord) {
  add(PoolClass::kPageGranular, 0, 8);
  PageBlock* record = pool(PoolClass::kPageGranular).own.smallest();
  PageBlock* small = take(PoolClass::kPageGranular, 2 * kPageBytes);
  EXPECT_EQ(small->address(), page(0));
  EXPECT_EQ(record->address(), page(2));
  EXPECT_EQ(record->size_bytes(), 6 * kPageBytes);
  PageBlock* large = take(PoolClass::kPageGranular, 5 * kPageBytes);
  EXPECT_EQ(large, record);
  EXPECT_EQ(pools.directory().find(page(7))->address(), page(7));
  give_back(small);
  give_back(large);
  EXPECT_EQ(free_blocks(PoolClass::kPageGranular), (Free{{page(0), 8 * kPageBytes}}));
}

TEST_F(BlockPoolsTest, ADisplacedBlockIsFreeWhereItsPagesAreAndKnownAsAwayAtHome) {
  const StreamIndex host = pools.table().open({Facade::kHost, 0, nullptr});
  Pool& elsewhere = pools.at(pool_of(host, PoolClass::kPageGranular));
  add(PoolClass::kPageGranular, 0, 4);
  PageBlock* block = take(PoolClass::kPageGranular, 4 * kPageBytes);
  block->set(BlockState::kReleasing);
  pools.side_states().make(block).fences = {{0, nullptr}};
  pools.put(block, elsewhere);
  EXPECT_FALSE(block->has_no_side_state);
  EXPECT_EQ(pools.take(pool(PoolClass::kPageGranular), kPageBytes), nullptr);
  const auto& away = pool(PoolClass::kPageGranular).displaced_away;
  EXPECT_EQ(std::vector<PageBlock*>(away.begin(), away.end()), std::vector<PageBlock*>{block});
  PageBlock* taken = pools.take_displaced_here(elsewhere, kPageBytes);
  ASSERT_EQ(taken, block);
  taken = pools.trim(taken, kPageBytes);
  EXPECT_EQ(taken->address(), page(0));
  ASSERT_EQ(elsewhere.displaced_here.free_bytes(), 3 * kPageBytes);
  EXPECT_FALSE(elsewhere.displaced_here.smallest()->has_no_side_state)
      << "the fence stays with the rest";
  EXPECT_EQ(pools.side_states().find(taken), nullptr);
  pools.put(taken, pool(PoolClass::kPageGranular));
  PageBlock* rest = *away.begin();
  ASSERT_EQ(rest->address(), page(1));
  pools.take_displaced(rest);
  EXPECT_TRUE(away.empty());
  pools.side_states().drop(rest);
  pools.put(rest, pool(PoolClass::kPageGranular));
  EXPECT_EQ(free_blocks(PoolClass::kPageGranular), (Free{{page(0), 4 * kPageBytes}}));
}

}  // namespace
}  // namespace uvm
