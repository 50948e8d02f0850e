// Where blocks come to lie: every address is stated. Records only: no memory is behind them.
#include <uvmalloc/allocator/block_pools.hpp>
#include <uvmalloc/allocator/configuration.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace uvm {
namespace {

constexpr std::size_t kKiB = 1024;

class BlockPoolsTest : public ::testing::Test {
 protected:
  BlockPoolsTest() {
    auto made = std::make_unique<Span>();
    made->base = reinterpret_cast<char*>(std::uintptr_t{1} << 40);
    made->size_bytes = 16 * kPageBytes;
    made->facade = Facade::kDevice;
    spans.push_back(std::move(made));
    base = spans[0]->base;
    first = pools.pools_of({Facade::kDevice, 0, nullptr});
  }
  void TearDown() override { pools.check_invariants(spans); }

  Pool& pool(PoolClass of) { return pools.at(first + static_cast<PoolIndex>(of)); }
  char* page(std::size_t number) const { return base + number * kPageBytes; }

  // Pages of the span become free blocks of the pool.
  void add(PoolClass of, std::size_t number, std::size_t count,
           const SegmentPlacement& placement = {}) {
    pools.put(
        pools.add_pages(spans[0].get(), page(number), count * kPageBytes, pool(of), placement),
        pool(of));
  }
  // What a request gets, live; nullptr: nothing fits.
  RunBlock* take(PoolClass of, std::size_t size_bytes) {
    RunBlock* block = pools.take(pool(of), size_bytes);
    if (block == nullptr) return nullptr;
    block = pools.trim(block, size_bytes);
    block->real.references = 1;
    block->set(BlockState::kLive);
    return block;
  }
  void give_back(RunBlock* block) {
    block->set(BlockState::kReleasing);
    pools.put(block, pools.at(block->home));
  }
  std::vector<std::pair<char*, std::size_t>> free_blocks(PoolClass of) {
    std::vector<std::pair<char*, std::size_t>> out;
    FreeIndex& own = pool(of).own;
    for (RunBlock* block = own.smallest(); block != nullptr; block = own.after(block)) {
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
  BlockPools pools{Configuration{}.requests_before_keeping};
  PoolIndex first = 0;
};

TEST_F(BlockPoolsTest, AStreamHasFourPoolsSideBySide) {
  PoolIndex other = pools.pools_of({Facade::kDevice, 0, &base});
  EXPECT_EQ(first, 0u);
  EXPECT_EQ(other, kPoolsPerStream);
  EXPECT_EQ(pools.pools_of({Facade::kDevice, 0, nullptr}), first);
  EXPECT_EQ(pool(PoolClass::kPacked).pool_class, PoolClass::kPacked);
}

TEST_F(BlockPoolsTest, ClassesAndRoundingChangeAtTheirBoundaries) {
  using P = BlockPools;
  EXPECT_EQ(P::class_of(Facade::kHost, 4096), PoolClass::kSmall);
  EXPECT_EQ(P::class_of(Facade::kHost, 4097), PoolClass::kMedium);
  EXPECT_EQ(P::class_of(Facade::kHost, kWholeBytes - 1), PoolClass::kMedium);
  EXPECT_EQ(P::class_of(Facade::kHost, kWholeBytes), PoolClass::kWhole);
  EXPECT_EQ(P::class_of(Facade::kDevice, kPackedBytes - 1), PoolClass::kMedium);
  EXPECT_EQ(P::class_of(Facade::kDevice, kPackedBytes), PoolClass::kPacked);
  EXPECT_EQ(P::class_of(Facade::kDevice, 2 * kPageBytes), PoolClass::kPacked);
  EXPECT_EQ(P::rounded(Facade::kHost, 4097), 4608u);
  EXPECT_EQ(P::rounded(Facade::kHost, kWholeBytes), kPageBytes);
  EXPECT_EQ(P::rounded(Facade::kDevice, 3 * kWholeBytes), 3 * kWholeBytes);
}

TEST_F(BlockPoolsTest, BlocksAreCutFromTheFrontAndJoinAgain) {
  add(PoolClass::kMedium, 0, 1);
  RunBlock* a = take(PoolClass::kMedium, 64 * kKiB);
  RunBlock* b = take(PoolClass::kMedium, 4608);
  RunBlock* c = take(PoolClass::kMedium, 100 * kKiB);
  EXPECT_EQ(a->address(), base);
  EXPECT_EQ(b->address(), base + 64 * kKiB);
  EXPECT_EQ(c->address(), base + 64 * kKiB + 4608);
  char* rest = c->end();
  give_back(a);
  EXPECT_EQ(free_blocks(PoolClass::kMedium),
            (Free{{base, 64 * kKiB}, {rest, kPageBytes - 164 * kKiB - 4608}}));
  give_back(c);
  EXPECT_EQ(free_blocks(PoolClass::kMedium),
            (Free{{base, 64 * kKiB}, {base + 64 * kKiB + 4608, kPageBytes - 64 * kKiB - 4608}}));
  give_back(b);
  EXPECT_EQ(free_blocks(PoolClass::kMedium), (Free{{base, kPageBytes}}));
}

TEST_F(BlockPoolsTest, ARestTooSmallToBeABlockStaysWithItsNeighbour) {
  const std::size_t least = BlockPools::kSmallestShared;
  add(PoolClass::kMedium, 0, 1);
  take(PoolClass::kMedium, kPageBytes - 100 * kKiB);
  RunBlock* all_but_little = take(PoolClass::kMedium, 100 * kKiB - least + kGranule);
  EXPECT_EQ(all_but_little->size_bytes(), 100 * kKiB);
  give_back(all_but_little);
  RunBlock* less = take(PoolClass::kMedium, 100 * kKiB - least);
  EXPECT_EQ(less->size_bytes(), 100 * kKiB - least);
  EXPECT_EQ(free_blocks(PoolClass::kMedium), (Free{{less->end(), least}}));
}

TEST_F(BlockPoolsTest, LessThanAThirtySecondOfARequestStaysWithItsBlock) {
  add(PoolClass::kPacked, 0, 1);
  RunBlock* other = take(PoolClass::kPacked, kWholeBytes);
  RunBlock* block = take(PoolClass::kPacked, kWholeBytes - 31 * kKiB);
  EXPECT_EQ(block->size_bytes(), kWholeBytes);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), Free{});
  give_back(other);
  EXPECT_EQ(take(PoolClass::kPacked, 992 * kKiB)->size_bytes(), 992 * kKiB);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{page(0), 32 * kKiB}})) << "just as much";
}

TEST_F(BlockPoolsTest, AQuarterOfAPageIsCutOffHoweverLargeTheRequest) {
  constexpr std::size_t kQuarter = kPageBytes / 4;
  add(PoolClass::kPacked, 0, 16);
  RunBlock* block = take(PoolClass::kPacked, 16 * kPageBytes - kQuarter + kGranule);
  EXPECT_EQ(block->size_bytes(), 16 * kPageBytes);
  give_back(block);
  block = take(PoolClass::kPacked, 16 * kPageBytes - kQuarter);
  EXPECT_EQ(block->size_bytes(), 16 * kPageBytes - kQuarter);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{block->end(), kQuarter}}));
}

TEST_F(BlockPoolsTest, APackedPoolCutsLargeBlocksFromTheLowEndAndSmallOnesFromTheHighEnd) {
  add(PoolClass::kPacked, 0, 4);
  RunBlock* small = take(PoolClass::kPacked, kWholeBytes - kGranule);
  EXPECT_EQ(small->end(), page(4));
  RunBlock* large = take(PoolClass::kPacked, kWholeBytes);
  EXPECT_EQ(large->address(), page(0));
  RunBlock* smaller = take(PoolClass::kPacked, kPackedBytes);
  EXPECT_EQ(smaller->end(), small->address());
  RunBlock* larger = take(PoolClass::kPacked, 3 * kWholeBytes);
  EXPECT_EQ(larger->address(), large->end());
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{larger->end(), static_cast<std::size_t>(smaller->address() - larger->end())}}));
  for (RunBlock* block : {small, larger, large, smaller}) give_back(block);
  EXPECT_EQ(free_blocks(PoolClass::kPacked), (Free{{page(0), 4 * kPageBytes}}));
}

TEST_F(BlockPoolsTest, WhenPagesAreSparedBlocksOfWholePagesAreCutAtTheirBoundaries) {
  add(PoolClass::kPacked, 0, 8);
  RunBlock* odd = take(PoolClass::kPacked, kWholeBytes);
  RunBlock* before = take(PoolClass::kPacked, kPageBytes);
  EXPECT_EQ(before->address(), odd->end()) << "with pages to spare";
  pools.spare_pages();
  RunBlock* block = take(PoolClass::kPacked, 2 * kPageBytes);
  EXPECT_EQ(block->address(), page(2));
  EXPECT_EQ(free_blocks(PoolClass::kPacked),
            (Free{{before->end(), kWholeBytes}, {page(4), 4 * kPageBytes}}));
  RunBlock* no_multiple = take(PoolClass::kPacked, kPageBytes + kGranule);
  EXPECT_EQ(no_multiple->address(), page(4));
  RunBlock* all = take(PoolClass::kPacked, 3 * kPageBytes - kGranule);
  EXPECT_EQ(all->address(), no_multiple->end());
}

TEST_F(BlockPoolsTest, ABlockThatEndsBehindTheLastWholePageStaysWhereItTakesOneLess) {
  add(PoolClass::kPacked, 0, 4);
  RunBlock* low = take(PoolClass::kPacked, kWholeBytes);
  RunBlock* high = take(PoolClass::kPacked, kWholeBytes - kGranule);
  EXPECT_EQ(high->end(), page(4));
  pools.spare_pages();
  RunBlock* block = take(PoolClass::kPacked, 3 * kPageBytes);
  EXPECT_EQ(block->address(), low->end()) << "two whole pages and parts of two others";
}

TEST_F(BlockPoolsTest, ASmallPackedBlockFillsAHoleBetweenSmallOnesBeforeALargePieceIsCut) {
  add(PoolClass::kPacked, 0, 4);
  RunBlock* high = take(PoolClass::kPacked, 256 * kKiB);
  RunBlock* middle = take(PoolClass::kPacked, 512 * kKiB);
  RunBlock* low = take(PoolClass::kPacked, 256 * kKiB);
  char* hole = middle->address();
  give_back(middle);
  RunBlock* again = take(PoolClass::kPacked, 128 * kKiB);
  EXPECT_EQ(again->end(), high->address());
  EXPECT_EQ(take(PoolClass::kPacked, 384 * kKiB)->address(), hole);
  EXPECT_EQ(take(PoolClass::kPacked, 384 * kKiB)->end(), low->address());
}

TEST_F(BlockPoolsTest, ABlockCutFromTheHighEndLeavesTheRecordToTheRest) {
  add(PoolClass::kPacked, 0, 2);
  RunBlock* record = pool(PoolClass::kPacked).own.smallest();
  RunBlock* taken = pools.take(pool(PoolClass::kPacked), 256 * kKiB);
  pools.make_extras(taken).uses = {{0, nullptr}};
  taken = pools.trim(taken, 256 * kKiB);
  EXPECT_NE(taken, record);
  EXPECT_EQ(pools.extras(taken), nullptr);
  ASSERT_EQ(free_blocks(PoolClass::kPacked), (Free{{page(0), 2 * kPageBytes - 256 * kKiB}}));
  EXPECT_EQ(pool(PoolClass::kPacked).own.smallest(), record);
  EXPECT_EQ(pools.block_at(page(2) - 256 * kKiB), taken);
}

TEST_F(BlockPoolsTest, PagesBesideARunExtendItOnBothSides) {
  add(PoolClass::kMedium, 4, 1);
  RunBlock* block = take(PoolClass::kMedium, kPageBytes - 64 * kKiB);
  EXPECT_EQ(free_before(PoolClass::kMedium, page(5)), 64 * kKiB);
  EXPECT_EQ(free_after(PoolClass::kMedium, page(4)), 0u) << "in use";
  EXPECT_EQ(free_before(PoolClass::kPacked, page(5)), 0u) << "not that pool's";
  add(PoolClass::kMedium, 5, 1);
  EXPECT_EQ(free_blocks(PoolClass::kMedium), (Free{{block->end(), kPageBytes + 64 * kKiB}}));
  EXPECT_EQ(free_before(PoolClass::kMedium, page(6)), kPageBytes + 64 * kKiB);
  EXPECT_EQ(free_before(PoolClass::kMedium, page(7)), 0u) << "nobody's";
  add(PoolClass::kMedium, 3, 1);
  EXPECT_EQ(free_after(PoolClass::kMedium, page(3)), kPageBytes);
  give_back(block);
  EXPECT_EQ(free_blocks(PoolClass::kMedium), (Free{{page(3), 3 * kPageBytes}}));
}

TEST_F(BlockPoolsTest, PagesAdvisedOtherwiseDoNotExtendARun) {
  add(PoolClass::kMedium, 0, 1, {Place::host(), {}, 1});
  EXPECT_EQ(free_before(PoolClass::kMedium, page(1)), 0u);
  EXPECT_EQ(free_after(PoolClass::kMedium, page(0)), 0u);
  add(PoolClass::kMedium, 1, 1);
  EXPECT_EQ(free_blocks(PoolClass::kMedium), (Free{{page(0), kPageBytes}, {page(1), kPageBytes}}));
}

TEST_F(BlockPoolsTest, PagesOfTheSpanBesideAreNotJoined) {
  auto beside = std::make_unique<Span>();
  beside->base = page(16);
  beside->size_bytes = 4 * kPageBytes;
  beside->facade = Facade::kDevice;
  spans.push_back(std::move(beside));
  for (PoolClass of : {PoolClass::kMedium, PoolClass::kWhole}) {
    add(of, 15, 1);
    pools.put(pools.add_pages(spans[1].get(), page(16), kPageBytes, pool(of), {}), pool(of));
    EXPECT_EQ(free_blocks(of), (Free{{page(15), kPageBytes}, {page(16), kPageBytes}}));
    for (int i = 0; i < 2; ++i) pools.take_pages(pool(of), kPageBytes);
    EXPECT_TRUE(free_blocks(of).empty());
  }
}

TEST_F(BlockPoolsTest, APageOutOfTheMiddleOfARunLeavesBothSides) {
  add(PoolClass::kMedium, 0, 4);
  RunBlock* front = take(PoolClass::kMedium, 64 * kKiB);
  BlockPools::Pages taken = pools.take_pages(pool(PoolClass::kMedium), kPageBytes);
  EXPECT_EQ(taken.base, page(1));
  EXPECT_EQ(taken.size_bytes, kPageBytes);
  EXPECT_EQ(free_blocks(PoolClass::kMedium),
            (Free{{front->end(), kPageBytes - 64 * kKiB}, {page(2), 2 * kPageBytes}}));
  EXPECT_EQ(pools.find(page(1)), nullptr);
  EXPECT_FALSE(pools.is_ours(page(1)));
  give_back(front);
  EXPECT_EQ(free_blocks(PoolClass::kMedium),
            (Free{{page(0), kPageBytes}, {page(2), 2 * kPageBytes}}));
  add(PoolClass::kMedium, 1, 1);
  EXPECT_EQ(free_blocks(PoolClass::kMedium), (Free{{page(0), 4 * kPageBytes}})) << "closed again";
}

TEST_F(BlockPoolsTest, ATailTooSmallToBeABlockKeepsItsPage) {
  add(PoolClass::kMedium, 0, 3);
  RunBlock* front = take(PoolClass::kMedium, 2 * kPageBytes + kGranule);
  RunBlock* behind = take(PoolClass::kMedium, 64 * kKiB);
  ASSERT_EQ(behind->address(), page(2) + kGranule);
  give_back(front);
  EXPECT_EQ(pools.take_pages(pool(PoolClass::kMedium), 2 * kPageBytes).base, nullptr);
  EXPECT_EQ(pools.take_pages(pool(PoolClass::kMedium), kPageBytes).base, page(0));
  EXPECT_EQ(free_blocks(PoolClass::kMedium).back(), (std::pair{page(1), kPageBytes + kGranule}));
  EXPECT_EQ(pools.take_pages(pool(PoolClass::kMedium), kPageBytes).base, nullptr);
}

TEST_F(BlockPoolsTest, WhollyFreePagesAreReleasedAndWhatIsAroundThemStays) {
  add(PoolClass::kMedium, 0, 4);
  RunBlock* front = take(PoolClass::kMedium, 64 * kKiB);
  RunBlock* middle = take(PoolClass::kMedium, 3 * kPageBytes);
  give_back(front);
  auto release = [&](std::size_t most_bytes) {
    Free released;
    for (RunBlock* block : pools.with_pages(pool(PoolClass::kMedium), false)) {
      const BlockPools::Pages pages = pools.release_pages(block, most_bytes);
      if (pages.base != nullptr) released.emplace_back(pages.base, pages.size_bytes);
    }
    return released;
  };
  EXPECT_EQ(release(SIZE_MAX), Free{}) << "no page is wholly free";
  give_back(middle);
  EXPECT_EQ(release(kPageBytes + 5), (Free{{page(0), kPageBytes}}));
  EXPECT_EQ(release(SIZE_MAX), (Free{{page(1), 3 * kPageBytes}}));
  EXPECT_TRUE(free_blocks(PoolClass::kMedium).empty());
}

TEST_F(BlockPoolsTest, AnAddressInALiveBlockFindsItFromEveryPageItReachesInto) {
  add(PoolClass::kMedium, 0, 4);
  take(PoolClass::kMedium, 64 * kKiB);
  RunBlock* block = take(PoolClass::kMedium, 3 * kPageBytes);
  for (char* address :
       {block->address(), page(1) - 1, page(1), page(2) + 12345, page(3), block->end() - 1}) {
    EXPECT_EQ(pools.find(address), block) << (address - base);
  }
  EXPECT_NE(pools.find(block->end()), block);
  EXPECT_EQ(pools.block_at(block->address()), block);
  EXPECT_EQ(pools.block_at(page(1)), nullptr);
}

TEST_F(BlockPoolsTest, OfAWholeBlockTheLargerPartKeepsTheRecord) {
  add(PoolClass::kWhole, 0, 8);
  RunBlock* record = pool(PoolClass::kWhole).own.smallest();
  RunBlock* small = take(PoolClass::kWhole, 2 * kPageBytes);
  EXPECT_EQ(small->address(), page(0));
  EXPECT_EQ(record->address(), page(2));
  EXPECT_EQ(record->size_bytes(), 6 * kPageBytes);
  RunBlock* large = take(PoolClass::kWhole, 5 * kPageBytes);
  EXPECT_EQ(large, record);
  EXPECT_EQ(pools.find(page(7))->address(), page(7));
  give_back(small);
  give_back(large);
  EXPECT_EQ(free_blocks(PoolClass::kWhole), (Free{{page(0), 8 * kPageBytes}}));
}

TEST_F(BlockPoolsTest, AGuestIsFreeWhereItsPagesAreAndKnownAsAwayAtHome) {
  PoolIndex host = pools.pools_of({Facade::kHost, 0, nullptr});
  Pool& guests_of = pools.at(host + static_cast<PoolIndex>(PoolClass::kWhole));
  add(PoolClass::kWhole, 0, 4);
  RunBlock* block = take(PoolClass::kWhole, 4 * kPageBytes);
  block->set(BlockState::kReleasing);
  pools.make_extras(block).fences = {{0, nullptr}};
  pools.put(block, guests_of);
  EXPECT_FALSE(block->plain);
  EXPECT_EQ(pools.take(pool(PoolClass::kWhole), kPageBytes), nullptr);
  EXPECT_EQ(pools.fenced_guests(guests_of), std::vector<RunBlock*>{block});
  RunBlock* taken = pools.take_guest(guests_of, kPageBytes);
  ASSERT_EQ(taken, block);
  taken = pools.trim(taken, kPageBytes);
  EXPECT_EQ(taken->address(), page(0));
  ASSERT_EQ(guests_of.guests.free_bytes(), 3 * kPageBytes);
  EXPECT_FALSE(guests_of.guests.smallest()->plain) << "the fence stays with the rest";
  EXPECT_EQ(pools.extras(taken), nullptr);
  pools.put(taken, pool(PoolClass::kWhole));
  RunBlock* away = pools.take_away(pool(PoolClass::kWhole), kPageBytes);
  ASSERT_EQ(away->address(), page(1));
  pools.drop_extras(away);
  pools.put(away, pool(PoolClass::kWhole));
  EXPECT_EQ(free_blocks(PoolClass::kWhole), (Free{{page(0), 4 * kPageBytes}}));
}

}  // namespace
}  // namespace uvm
