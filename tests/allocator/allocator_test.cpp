// What a caller gets: addresses, reuse, fences, moves, records.
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/process/framework_bridge.hpp"
#include "tests/support/allocator_fixture.hpp"
#include "tests/support/sanitized.hpp"

namespace uvm {
namespace {

using testing::AllocatorTest;
using testing::kMiB;
using testing::stream;

TEST_F(AllocatorTest, SmallBlocksShareAPageAndStartOnMultiplesOf512) {
  std::set<char*> blocks;
  for (std::size_t size_bytes : {1, 512, 513, 1024, 4096, 100}) {
    char* block = device(size_bytes);
    EXPECT_EQ(address_of(block) % 512, 0u);
    EXPECT_EQ(allocator->find(block)->size_bytes, round_up(size_bytes, 512));
    blocks.insert(block);
  }
  EXPECT_EQ(blocks.size(), 6u);
  EXPECT_EQ(address_of(*blocks.begin()) / kPageBytes, address_of(*blocks.rbegin()) / kPageBytes);
}

TEST_F(AllocatorTest, LargeHostBlocksStartOnA2MiBBoundaryAndTakeWholePages) {
  char* a = host(kMiB);
  char* b = host(2 * kMiB + 1);
  char* c = host(2 * kMiB);
  EXPECT_EQ(address_of(a) % kPageBytes, 0u);
  EXPECT_EQ(b, a + 2 * kMiB);
  EXPECT_EQ(c, a + 6 * kMiB);
  EXPECT_TRUE(allocator->find(b)->movable);
}

TEST_F(AllocatorTest, LargeDeviceBlocksLieSideBySide) {
  char* first = device(3 * kMiB);
  char* beside = device(3 * kMiB);
  char* small = device(kMiB - 512);
  EXPECT_EQ(address_of(first) % kPageBytes, 0u);
  EXPECT_EQ(beside, first + 3 * kMiB) << "the free end of the run grew by what was missing";
  EXPECT_TRUE(allocator->find(beside)->movable);
  EXPECT_EQ(allocator->find(beside + 2 * kMiB)->base, beside) << "found from its second page";
  EXPECT_FALSE(allocator->find(small)->movable);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 8 * kMiB);
}

TEST_F(AllocatorTest, ADeviceBlockBeginsWhereItIsToAndWhatIsInFrontOfItIsFree) {
  start(without_thread_caches());
  char* first = device(kMiB);
  auto* block = static_cast<char*>(
      allocator->allocate_aligned(Facade::kDevice, 0, 3 * kMiB, kPageBytes, nullptr));
  EXPECT_EQ(block, first + kPageBytes);
  EXPECT_EQ(allocator->find(block)->size_bytes, 3 * kMiB);
  char* between = device(kMiB);
  EXPECT_EQ(between, first + kMiB);
  auto* small =
      static_cast<char*>(allocator->allocate_aligned(Facade::kDevice, 0, 100, 8192, nullptr));
  EXPECT_EQ(address_of(small) % 8192, 0u);
  EXPECT_LE(allocator->find(small)->size_bytes, 2 * 4608u);
  for (char* each : {first, block, between, small}) allocator->free(each);
  EXPECT_EQ(allocator->statistics().largest_free_bytes,
            allocator->statistics().touched_bytes.current);
}

TEST_F(AllocatorTest, AlignedDeviceBlocksOfAllSizesAreApartAndGiveAllBack) {
  std::mt19937 random(1);
  auto below = [&](std::size_t bound) { return std::size_t{random()} % bound; };
  std::map<char*, std::size_t> live;  // size in bytes, by start address
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 40 && below(2) == 0) {
      const std::size_t size_bytes = 1 + below(std::size_t{1} << below(23));
      const std::size_t alignment_bytes = std::size_t{1} << below(22);
      auto* block = static_cast<char*>(allocator->allocate_aligned(
          Facade::kDevice, 0, size_bytes, alignment_bytes, stream(1 + i % 2)));
      ASSERT_EQ(address_of(block) % alignment_bytes, 0u);
      auto after = live.lower_bound(block);
      ASSERT_TRUE(after == live.end() || block + size_bytes <= after->first);
      if (after != live.begin()) {
        const auto& [before, before_bytes] = *std::prev(after);
        ASSERT_LE(before + before_bytes, block);
      }
      live.emplace(block, size_bytes);
    } else if (!live.empty()) {
      auto chosen = std::next(live.begin(), static_cast<std::ptrdiff_t>(below(live.size())));
      ASSERT_EQ(allocator->free(chosen->first), FreeResult::kFreed);
      live.erase(chosen);
    }
    if (i % 100 == 0) allocator->inspection().check_invariants();
  }
  for (const auto& [block, size_bytes] : live) allocator->free(block);
  EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
}

TEST_F(AllocatorTest, DeviceBlocksOfAllSizesShareAStreamsPages) {
  char* large = device(3 * kMiB);
  EXPECT_EQ(device(512), large + 3 * kMiB) << "a part of them for small objects";
  EXPECT_EQ(device(32 * 1024), large + 3 * kMiB + 256 * 1024);
  EXPECT_EQ(device(736 * 1024), large + 3 * kMiB + 288 * 1024);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 4 * kMiB);
  char* medium = device(32 * 1024);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 6 * kMiB) << "nothing was left";
  EXPECT_EQ(device(kMiB), medium + 32 * 1024);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 6 * kMiB);
}

TEST_F(AllocatorTest, WhatThreadsKeepOfSmallObjectsStaysWhileTheStreamHasFreeMemoryForOthers) {
  std::vector<char*> small;
  for (int i = 0; i < 512; ++i) small.push_back(device(512));
  for (char* one : small) allocator->free(one);
  ASSERT_EQ(allocator->statistics().thread_cached_bytes, 256 * 1024u);
  device(1024);
  EXPECT_GE(allocator->statistics().thread_cached_bytes, 256 * 1024u);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 2 * kMiB);
}

TEST_F(AllocatorTest, SmallObjectsTakeAsMuchOfAPageAsTheyNeedAndGiveItBack) {
  std::vector<char*> small;
  for (int i = 0; i < 513; ++i) small.push_back(device(512));
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 2 * kMiB);
  const auto reserved = [&](std::size_t of) {
    return allocator->statistics().classes[2][0][of].reserved_bytes.current;
  };
  EXPECT_EQ(reserved(0), 512 * 1024u) << "in segments of 256 KiB";
  EXPECT_EQ(reserved(1), 1536 * 1024u);
  char* block = device(kMiB);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 2 * kMiB) << "of the same page";
  for (char* one : small) allocator->free(one);
  allocator->release_cached();
  EXPECT_EQ(reserved(0), 0u);
  EXPECT_EQ(reserved(1), 2 * kMiB);
  allocator->free(block);
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
}

TEST_F(AllocatorTest, WholePagesFreeInOneHostPoolServeTheOther) {
  char* large = host(4 * kMiB);
  allocator->free(large);
  EXPECT_EQ(host(32 * 1024), large);
  EXPECT_EQ(host(2 * kMiB), large + 2 * kMiB) << "a page is left where it was";
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 4 * kMiB);
}

TEST_F(AllocatorTest, AFreedBlockIsUsedAgainByTheSameStreamAtOnce) {
  for (std::size_t size_bytes : {std::size_t{100}, 700 * std::size_t{1024}, 5 * kMiB}) {
    char* first = device(size_bytes, stream(1));
    allocator->free(first);
    EXPECT_EQ(device(size_bytes, stream(1)), first) << size_bytes;
  }
}

TEST_F(AllocatorTest, StreamsDoNotShareFreeBlocks) {
  char* first = device(4096, stream(1));
  allocator->free(first);
  EXPECT_NE(device(4096, stream(2)), first);
}

TEST_F(AllocatorTest, FreeNeighboursAreJoined) {
  start(without_thread_caches());
  constexpr std::size_t kUnit = 8192;
  char* a = device(kUnit);
  char* b = device(kUnit);
  char* c = device(kUnit);
  char* guard = device(kUnit);
  allocator->free(a);
  allocator->free(c);
  allocator->free(b);
  EXPECT_EQ(device(3 * kUnit), a) << "the three together";
  allocator->free(guard);
}

TEST_F(AllocatorTest, WhatThreadsKeepIsJoinedBeforeNewPagesAreTouched) {
  std::vector<char*> blocks;
  for (int i = 0; i < 128; ++i) blocks.push_back(device(16 * 1024));
  for (int i : {2, 4, 3}) allocator->free(blocks[static_cast<std::size_t>(i)]);
  EXPECT_EQ(device(48 * 1024), blocks[2]);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, kPageBytes);
}

TEST_F(AllocatorTest, WhatAnotherThreadKeepsIsFoundBeforeNewPagesAreTouched) {
  char* block = device(4 * kMiB);
  std::atomic<bool> freed = false;
  std::atomic<bool> over = false;
  std::thread other([&] {
    char* mine = device(4 * kMiB);
    allocator->free(mine);
    allocator->free(block);
    freed = true;
    while (!over) std::this_thread::yield();
  });
  while (!freed) std::this_thread::yield();
  EXPECT_EQ(device(8 * kMiB), block) << "both, joined";
  over = true;
  other.join();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 8 * kMiB);
}

TEST_F(AllocatorTest, AThreadThatEndsLeavesItsBlocksAndItsFigures) {
  char* kept = nullptr;
  char* freed = nullptr;
  std::thread([&] {
    kept = device(8192);
    freed = device(4 * kMiB);
    allocator->free(freed);
  }).join();
  EXPECT_EQ(allocator->statistics().live_bytes.current, 8192u);
  EXPECT_EQ(allocator->statistics().live_bytes.peak, 4 * kMiB + 8192u);
  char* again = device(4 * kMiB);
  EXPECT_LT(again, freed + 4 * kMiB) << "of the same pages";
  EXPECT_GT(again + 4 * kMiB, freed);
  allocator->free(kept);
}

TEST_F(AllocatorTest, FreeLargeNeighboursAreJoined) {
  char* a = device(2 * kMiB);
  char* b = device(4 * kMiB);
  allocator->free(b);
  allocator->free(a);
  EXPECT_EQ(device(6 * kMiB), a);
}

TEST_F(AllocatorTest, TheBestFitIsTheSmallestSufficientBlockAtTheLowestAddress) {
  start(without_thread_caches());
  char* big = device(7 * 8192);
  char* separator1 = device(8192);
  char* fit1 = device(2 * 8192);
  char* separator2 = device(8192);
  char* fit2 = device(2 * 8192);
  char* separator3 = device(8192);
  allocator->free(big);
  allocator->free(fit2);
  allocator->free(fit1);
  EXPECT_EQ(device(2 * 8192), fit1);
  EXPECT_EQ(device(2 * 8192), fit2);
  EXPECT_EQ(device(2 * 8192), big);
  for (char* separator : {separator1, separator2, separator3}) allocator->free(separator);
}

TEST_F(AllocatorTest, ZeroBytesAreANullPointerAndFreeingItIsFine) {
  EXPECT_EQ(device(0), nullptr);
  EXPECT_EQ(allocator->free(nullptr), FreeResult::kFreed);
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

TEST_F(AllocatorTest, ImpossibleRequestsAreRefusedAndNothingIsLost) {
  EXPECT_THROW(device(std::numeric_limits<std::size_t>::max()), OutOfMemoryError);
  EXPECT_THROW(device(std::size_t{1} << 50), OutOfMemoryError);
  EXPECT_THROW(allocator->allocate(Facade::kDevice, 1, 100), std::invalid_argument);
  EXPECT_THROW(allocator->allocate(Facade::kHost, -1, 100), std::invalid_argument);
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

TEST_F(AllocatorTest, MisuseIsReportedAndChangesNothing) {
  char* block = device(4 * kMiB);
  char* small = device(4096);
  int foreign = 0;
  EXPECT_EQ(allocator->free(&foreign), FreeResult::kNotOurs);
  EXPECT_EQ(allocator->free(block + 512), FreeResult::kInterior);
  EXPECT_EQ(allocator->free(small + 512), FreeResult::kInterior);
  EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  EXPECT_EQ(allocator->free(block), FreeResult::kDouble);
  EXPECT_EQ(allocator->free(small), FreeResult::kFreed);
  EXPECT_EQ(allocator->free(small), FreeResult::kDouble);
  EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
}

TEST_F(AllocatorTest, AnUnalignedSpanOfTheDriverStillGivesAlignedBlocks) {
  machine->unaligned = true;
  EXPECT_EQ(address_of(device(4 * kMiB)) % kPageBytes, 0u);
}

// ---- fences

TEST_F(AllocatorTest, ABlockUsedByAnotherStreamWaitsForIt) {
  machine->busy = {stream(2)};
  char* block = device(4 * kMiB, stream(1));
  EXPECT_TRUE(allocator->record_use(block, 0, stream(2)));
  allocator->free(block);
  EXPECT_NE(device(4 * kMiB, stream(1)), block);
  machine->finish(stream(2));
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
}

TEST_F(AllocatorTest, FreedHostBlockWaitsForTheDeviceThatReadIt) {
  machine->busy = {stream(1)};
  char* block = host(4 * kMiB);
  allocator->record_use(block, 0, stream(1));
  allocator->free(block);
  EXPECT_NE(host(4 * kMiB), block) << "the host would write while the device reads";
  machine->finish(stream(1));
  EXPECT_EQ(host(4 * kMiB), block);
}

TEST_F(AllocatorTest, PinnedBlocksWaitLikeHostBlocks) {
  machine->busy = {stream(1)};
  void* block = allocator->allocate(Facade::kPinned, 0, 4 * kMiB);
  allocator->record_use(block, 0, stream(1));
  allocator->free(block);
  EXPECT_NE(allocator->allocate(Facade::kPinned, 0, 4 * kMiB), block);
  machine->finish(stream(1));
  EXPECT_EQ(allocator->allocate(Facade::kPinned, 0, 4 * kMiB), block);
}

TEST_F(AllocatorTest, OnlyTheOldestFenceOfEachStreamIsQueried) {
  machine->busy = {stream(2), stream(3)};
  std::vector<char*> blocks;
  for (int i = 0; i < 40; ++i) {
    blocks.push_back(device(32768, stream(1)));
    allocator->record_use(blocks.back(), 0, stream(2 + i % 2));
  }
  for (char* block : blocks) allocator->free(block);
  auto queries = [&] { return allocator->inspection().runtime_calls()["query_event"]; };
  auto before = queries();
  char* other = device(32768, stream(1));
  EXPECT_EQ(queries() - before, 2u) << "one of each stream";
  machine->finish(stream(2));
  std::vector<char*> reused;
  for (int i = 0; i < 20; ++i) reused.push_back(device(32768, stream(1)));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    bool again = std::find(reused.begin(), reused.end(), blocks[i]) != reused.end();
    EXPECT_EQ(again, i % 2 == 0) << i << ": of the stream that is done, all; of the other, none";
  }
  allocator->free(other);
}

TEST_F(AllocatorTest, AStreamThatRefusesItsEventIsWaitedForWithItsDevice) {
  machine->busy = {stream(2)};
  char* block = device(65536, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->failures["record_event"] = 1;
  allocator->free(block);
  EXPECT_TRUE(machine->busy.empty()) << "the device was synchronised";
  EXPECT_EQ(device(65536, stream(1)), block);
}

TEST_F(AllocatorTest, ABlockNobodyElseUsedNeedsNoDriverCallToBeUsedAgain) {
  char* block = device(4 * kMiB, stream(1));
  allocator->free(block);
  auto calls = allocator->inspection().runtime_calls();
  for (int round = 0; round < 100; ++round) allocator->free(device(4 * kMiB, stream(1)));
  EXPECT_EQ(allocator->inspection().runtime_calls(), calls);
}

// ---- hints and moves

TEST_F(AllocatorTest, SpansAreAdvisedOnceAndFreshDeviceBlocksArePrefetchedByTheirOwnPages) {
  char* block = device(4 * kMiB, stream(1));
  ASSERT_EQ(machine->hints.size(), 2u);
  EXPECT_EQ(machine->hints[0].size_bytes, 32 * kMiB);
  EXPECT_EQ(machine->hints[0].advice, Advice::kSetPreferredLocation);
  EXPECT_EQ(machine->hints[1], (Hint{HintKind::kPrefetch, {}, Place::device(0), block, 4 * kMiB}));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream 1 waits for stream lane"}));
  device(4 * kMiB, stream(1));
  EXPECT_EQ(count_hints(HintKind::kAdvise), 1u);
}

TEST_F(AllocatorTest, AMoveOfAPartPrefetchesThatPartAndLeavesTheRestWhereItIs) {
  char* block = host(8 * kMiB);
  machine->hints.clear();
  MoveRequest move;
  move.source = Place::host();
  move.destination = Place::device(0);
  move.stream = stream(1);
  move.size_bytes = 3 * kMiB;
  ASSERT_NE(allocator->move(block + 2 * kMiB, move), nullptr);
  // Only one whole page (2 MiB) moves: the last MiB of the part shares its page with other bytes.
  EXPECT_EQ(
      machine->hints,
      (std::vector<Hint>{{HintKind::kPrefetch, {}, Place::device(0), block + 2 * kMiB, 2 * kMiB}}));
  EXPECT_EQ(allocator->find(block)->location, Place::host());
  EXPECT_EQ(allocator->statistics().moves.bytes, 3 * kMiB);
}

TEST_F(AllocatorTest, AdviceGoesToTheWholePagesOfABlock) {
  char* block = host(4 * kMiB);
  char* shared = device(5 * kMiB, stream(1));
  char* small = device(512, stream(1));
  machine->hints.clear();
  EXPECT_TRUE(allocator->advise(block + 5, {.preferred = Place::device(0)}));
  EXPECT_TRUE(allocator->advise(block, {.preferred = Place::device(0)}));
  EXPECT_TRUE(allocator->advise(shared, {Place::host(), Place::device(0), true}));
  char* page = reinterpret_cast<char*>(round_up(address_of(shared), kPageBytes));
  EXPECT_EQ(
      machine->hints,
      (std::vector<Hint>{
          {HintKind::kAdvise, Advice::kSetPreferredLocation, Place::device(0), block, 4 * kMiB},
          {HintKind::kAdvise, Advice::kSetPreferredLocation, Place::host(), page, 4 * kMiB},
          {HintKind::kAdvise, Advice::kSetAccessedBy, Place::device(0), page, 4 * kMiB},
          {HintKind::kAdvise, Advice::kSetReadMostly, Place::host(), page, 4 * kMiB}}));
  EXPECT_FALSE(allocator->advise(small, {.preferred = Place::host()}));
  int foreign = 0;
  EXPECT_FALSE(allocator->advise(&foreign, {.preferred = Place::host()}));
}

TEST_F(AllocatorTest, TwoMovesOfOneHostTensorAreBothFromTheHost) {
  char* block = host(4 * kMiB);
  to_device(block, stream(1));
  to_device(block, stream(1));
  EXPECT_EQ(allocator->statistics().moves.host_to_device, 2u);
  EXPECT_EQ(allocator->statistics().moves.device_to_device, 0u);
}

TEST_F(AllocatorTest, AMovedBlockIsFreedOnceAndServesTheDeviceWhereItsPagesAre) {
  char* block = host(4 * kMiB);
  to_device(block, stream(1));
  allocator->free(block);
  machine->hints.clear();
  EXPECT_EQ(device(4 * kMiB, stream(1)), block) << "its pages are there already";
  EXPECT_TRUE(machine->hints.empty());
}

TEST_F(AllocatorTest, ADeviceRequestBelowOneMebibyteTakesNoWholePagesOfABlockThatMoved) {
  char* block = host(4 * kMiB);
  to_device(block, stream(1));
  allocator->free(block);
  char* below = device(kMiB - 1, stream(1));
  EXPECT_EQ(allocator->find(below)->size_bytes, kMiB);
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
}

TEST_F(AllocatorTest, AnyBlockThatMovedAwayIsFoundOnceItsDeviceIsThrough) {
  std::vector<char*> blocks;
  for (int on = 1; on <= 3; ++on) {
    blocks.push_back(host(4 * kMiB));
    to_device(blocks.back(), stream(on));
  }
  machine->busy = {stream(1), stream(2), stream(3)};
  for (char* block : blocks) allocator->free(block);
  machine->finish(stream(2));
  EXPECT_EQ(host(4 * kMiB), blocks[1]);
  EXPECT_EQ(allocator->statistics().recalls, 1u);
}

TEST_F(AllocatorTest, APageableLoopWaitsForTheOldestOfTwoBatchesThatADeviceHas) {
  std::set<char*> blocks;
  for (int step = 0; step < 20; ++step) {
    machine->busy = {stream(1)};
    char* block = host(32 * kMiB);
    to_device(block, stream(1));
    allocator->free(block);
    blocks.insert(block);
  }
  EXPECT_EQ(blocks.size(), policy::kHostLeadBlocks);
  EXPECT_EQ(allocator->statistics().touched_bytes.peak, policy::kHostLeadBlocks * 32 * kMiB);
}

TEST_F(AllocatorTest, BlocksThatWaitForSeveralStreamsCountForTheLeadOfTheHost) {
  std::set<char*> blocks;
  for (int step = 0; step < 20; ++step) {
    machine->busy = {stream(1), stream(2)};
    char* block = host(32 * kMiB);
    to_device(block, stream(1));
    allocator->record_use(block, 0, stream(2));
    allocator->free(block);
    blocks.insert(block);
  }
  EXPECT_EQ(blocks.size(), policy::kHostLeadBlocks);
}

TEST_F(AllocatorTest, APinnedLoopWaitsForNothing) {
  machine->busy = {stream(1)};
  std::set<void*> blocks;
  for (int step = 0; step < 4; ++step) {
    void* block = allocator->allocate(Facade::kPinned, 0, 32 * kMiB);
    to_device(block, stream(1));
    machine->waits.clear();
    allocator->free(block);
    blocks.insert(block);
  }
  EXPECT_EQ(blocks.size(), 4u);
  EXPECT_TRUE(machine->waits.empty());
}

TEST_F(AllocatorTest, ABlockThatMovedAwayComesBackToItsFacadeWhenTheDeviceIsThrough) {
  char* block = host(4 * kMiB);
  to_device(block, stream(1));
  machine->busy = {stream(1)};
  allocator->free(block);
  char* other = host(4 * kMiB);
  EXPECT_NE(other, block) << "the device may still read it";
  machine->finish(stream(1));
  EXPECT_EQ(host(4 * kMiB), block);
  EXPECT_EQ(allocator->statistics().recalls, 1u);
}

TEST_F(AllocatorTest, AFreshInputPerStepUsesTwoBlocksForEver) {
  for (int step = 0; step < 50; ++step) {
    char* input = host(4 * kMiB);
    to_device(input, stream(1));
    allocator->free(input);
  }
  EXPECT_LE(allocator->statistics().touched_bytes.current, 8 * kMiB);
  EXPECT_LE(count_hints(HintKind::kAdvise), 2u + 3u * 2u)
      << "going back and forth is advised for both sides once";
}

TEST_F(AllocatorTest, SteadyStepsMakeNoDriverCallsButThePrefetchOfTheMove) {
  auto step = [&] {
    char* input = host(4 * kMiB);
    to_device(input, stream(1));
    char* output = device(8 * kMiB, stream(1));
    allocator->free(output);
    allocator->free(input);
  };
  for (int warm = 0; warm < 10; ++warm) step();
  auto before = allocator->inspection().runtime_calls();
  for (int steady = 0; steady < 10; ++steady) step();
  auto after = allocator->inspection().runtime_calls();
  EXPECT_EQ(after["allocate_managed"], before["allocate_managed"]);
  EXPECT_EQ(after["free_managed"], before["free_managed"]);
  EXPECT_EQ(after["advise"], before["advise"]);
}

TEST_F(AllocatorTest, ADeviceBlockMovedToTheHostIsTheDevicesAgainWhenItIsFreed) {
  char* block = device(4 * kMiB, stream(1));
  to_host(block, stream(1));
  EXPECT_EQ(allocator->find(block)->location, Place::host());
  allocator->free(block);
  EXPECT_EQ(device(4 * kMiB, stream(1)), block) << "it shares pages with blocks of the device";
}

TEST_F(AllocatorTest, ABlockLargerThanItsRequestIsCachedByTheRequestedSize) {
  char* block = nullptr;
  std::thread([&] {
    block = device(48 * 1024);
    device(48 * 1024);
    allocator->free(block);
  }).join();
  ASSERT_EQ(device(45 * 1024), block);
  ASSERT_EQ(allocator->find(block)->size_bytes, 48 * 1024);
  allocator->free(block);
  EXPECT_EQ(device(45 * 1024), block) << "and not the next one";
}

TEST_F(AllocatorTest, AKeptBlockServesRequestsThatAreSmallerByLessThanABlock) {
  auto kept = [&] { return allocator->statistics().thread_cached_bytes; };
  // Includes the last size that threads keep, and sizes around the boundaries of 64-bit words.
  for (std::size_t granules : {20u, 63u, 64u, 65u, 72u, 127u}) {
    start();
    const std::size_t size_bytes = granules * 512;
    device(size_bytes);
    char* block = device(size_bytes);
    device(size_bytes);
    for (std::size_t less_bytes : {0u, 512u, 4095u, 4096u, 4607u}) {
      allocator->free(block);
      ASSERT_EQ(kept(), size_bytes);
      EXPECT_EQ(device(size_bytes - less_bytes), block) << granules << " - " << less_bytes;
      EXPECT_EQ(allocator->find(block)->size_bytes, size_bytes) << "it is not cut";
      EXPECT_EQ(kept(), 0u);
    }
    allocator->free(block);
    EXPECT_NE(device(size_bytes - 4608), block) << "what is left would be a block";
    EXPECT_NE(device(size_bytes + 1), block);
    EXPECT_EQ(kept(), size_bytes);
  }
}

TEST_F(AllocatorTest, OfKeptBlocksTheSmallestThatIsLargeEnoughIsTaken) {
  std::vector<char*> blocks;
  for (std::size_t granules : {70u, 62u, 66u}) blocks.push_back(device(granules * 512));
  for (char* block : blocks) allocator->free(block);
  EXPECT_EQ(device(62 * 512), blocks[1]);
  EXPECT_EQ(device(62 * 512), blocks[2]);
  EXPECT_EQ(device(62 * 512), blocks[0]);
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
}

TEST_F(AllocatorTest, AThreadKeepsHalfAMiBOfSmallObjectsOfEachSizeAndServesThem) {
  for (std::size_t size_bytes : {std::size_t{512}, std::size_t{4096}}) {
    start();
    const std::size_t most = 512 * 1024 / size_bytes;
    std::vector<char*> blocks;
    for (std::size_t i = 0; i < most + most / 2; ++i) blocks.push_back(device(size_bytes));
    for (char* block : blocks) allocator->free(block);
    const std::size_t kept_bytes = allocator->statistics().thread_cached_bytes;
    EXPECT_GT(kept_bytes, most * size_bytes * 3 / 4);
    EXPECT_LE(kept_bytes, most * size_bytes);
    const std::size_t again = most * 3 / 4;
    for (std::size_t i = 0; i < again; ++i) device(size_bytes);
    EXPECT_EQ(allocator->statistics().thread_cached_bytes, kept_bytes - again * size_bytes);
  }
}

TEST_F(AllocatorTest, CachedSmallerBlocksAreJoinedNowAndThenIfLargeOnesAreRequested) {
  allocator->free(device(8 * kMiB));
  std::vector<char*> blocks;
  for (std::size_t i = 0; i < 100; ++i) blocks.push_back(device((8 + i % 5) * 1024));
  for (char* block : blocks) allocator->free(block);
  const std::size_t kept_bytes = allocator->statistics().thread_cached_bytes;
  ASSERT_EQ(kept_bytes, 1000u * 1024);
  for (int i = 1; i < 16; ++i) allocator->free(device(kMiB));
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, kept_bytes);
  allocator->free(device(kMiB));
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
  EXPECT_EQ(allocator->statistics().largest_free_bytes, 8 * kMiB);
}

TEST_F(AllocatorTest, SmallerBlocksThatAreASmallPartOfWhatIsInUseStayKept) {
  auto large_requests = [&] {
    for (int i = 0; i < 16; ++i) allocator->free(device(kMiB));
  };
  device(32 * kMiB);  // 1/512 of it is 64 KiB
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(device(8192));
  char* more = device(4608);
  allocator->free(device(8 * kMiB));
  for (char* block : blocks) allocator->free(block);
  large_requests();
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 8u * 8192);
  allocator->free(more);
  large_requests();
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
}

TEST_F(AllocatorTest, AThreadKeepsNoMoreWhereOthersFreeItsBlocks) {
  for (int i = 0; i < 64; ++i) {
    char* block = device(32 * kMiB);
    std::thread([&] { allocator->free(block); }).join();
  }
  std::vector<char*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(device(8192));
  for (char* block : blocks) allocator->free(block);
  ASSERT_EQ(allocator->statistics().thread_cached_bytes, 10u * 8192);
  for (int i = 0; i < 16; ++i) allocator->free(device(kMiB));
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
}

TEST_F(AllocatorTest, LargeBlocksAreKeptByTheirThreadsOnceTheirPoolHasLongMetAllRequests) {
  char* block = device(4 * kMiB);
  char* second = device(4 * kMiB);
  allocator->free(block);
  allocator->free(second);
  for (int i = 1; i < 8192; ++i) allocator->free(device(4 * kMiB));
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
  EXPECT_EQ(device(4 * kMiB), block);
  allocator->free(block);
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 4 * kMiB);
  std::thread([&] {
    EXPECT_EQ(device(4 * kMiB), second);
    allocator->free(second);
    EXPECT_EQ(allocator->statistics().thread_cached_bytes, 8 * kMiB) << "a thread that came later";
  }).join();
}

TEST_F(AllocatorTest, LargeBlocksThatStandInTheWayAreKeptNoMore) {
  char* block = device(4 * kMiB);
  allocator->free(block);
  for (int i = 0; i < 8192; ++i) allocator->free(device(4 * kMiB));
  ASSERT_EQ(allocator->statistics().thread_cached_bytes, 4 * kMiB);
  char* larger = device(6 * kMiB);
  EXPECT_EQ(larger, block) << "joined with the pages that were missing";
  allocator->free(larger);
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
  EXPECT_EQ(allocator->statistics().free_bytes, 6 * kMiB);
  EXPECT_EQ(device(6 * kMiB), block);
}

TEST_F(AllocatorTest, ALargeRequestThatFindsNoneKeptIsMetFromAllThatIsFree) {
  char* low = device(4 * kMiB);
  char* between = device(4 * kMiB);
  allocator->free(device(8 * kMiB));  // free, at the highest address
  allocator->free(low);
  for (int i = 0; i < 8192; ++i) allocator->free(device(4 * kMiB));
  ASSERT_EQ(allocator->statistics().thread_cached_bytes, 4 * kMiB);
  EXPECT_EQ(device(2 * kMiB), low) << "the lowest place, as if nothing had been kept";
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
  allocator->free(between);
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u) << "that was too soon after the start";
}

TEST_F(AllocatorTest, AfterTheyStoodInTheWayItTakesEightTimesAsLongUntilLargeBlocksAreKept) {
  auto rounds_until_kept = [&] {
    for (int rounds = 1;; ++rounds) {
      allocator->free(device(4 * kMiB));
      if (allocator->statistics().thread_cached_bytes != 0) return rounds;
    }
  };
  allocator->free(device(8 * kMiB));
  EXPECT_EQ(rounds_until_kept(), 8192);
  allocator->free(device(2 * kMiB));
  EXPECT_EQ(rounds_until_kept(), 8 * 8192);
}

TEST_F(AllocatorTest, LargeBlocksAreStillKeptWhereHardlyAnyRequestFindsNone) {
  allocator->free(device(16 * kMiB));
  for (int i = 0; i < 8192; ++i) allocator->free(device(4 * kMiB));
  for (int misses = 0; misses < 5; ++misses) {
    for (int i = 0; i < 1024; ++i) allocator->free(device(4 * kMiB));
    ASSERT_EQ(allocator->statistics().thread_cached_bytes, 4 * kMiB) << "after " << misses;
    device(1 * kMiB);
    ASSERT_EQ(allocator->statistics().thread_cached_bytes, 0u);
  }
}

// A training loop runs for days, so it must not need more pages after its first steps.
TEST_F(AllocatorTest, AStepThatRepeatsTakesNoMorePagesInTheLongRun) {
  constexpr std::size_t kBlocks = 120;
  constexpr std::size_t kLongest = 40;  // in allocations
  Configuration configuration = small_configuration();
  configuration.budget_bytes = 2048 * kMiB;
  const auto seeds = static_cast<unsigned>(testing::steps(20, 1));
  for (unsigned seed = 0; seed < seeds; ++seed) {
    start(configuration);
    std::minstd_rand random(seed + 1);
    std::vector<std::size_t> sizes, ends;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      sizes.push_back((64u << 10) << random() % 8);
      sizes.back() += random() % 4 * (sizes.back() / 4);
      ends.push_back(i + 1 + random() % kLongest);
    }
    std::size_t touched = 0;
    for (int step = 0; step < 400; ++step) {
      std::vector<char*> blocks(kBlocks);
      for (std::size_t now = 0; now < kBlocks + kLongest; ++now) {
        for (std::size_t i = 0; i < kBlocks; ++i) {
          if (ends[i] == now) allocator->free(blocks[i]);
        }
        if (now < kBlocks) blocks[now] = device(sizes[now]);
      }
      const std::size_t before =
          std::exchange(touched, allocator->statistics().touched_bytes.current);
      if (step > 5) {
        ASSERT_EQ(touched, before) << "in step " << step << " of seed " << seed;
      }
    }
  }
}

TEST_F(AllocatorTest, RecordsAreReleasedOneByOneAndTheMemoryWithTheLast) {
  char* block = host(4 * kMiB);
  MovedStorage* moved =
      allocator->move(block, {Place::host(), Place::device(0), 0, stream(1), true});
  MovedStorage* again =
      allocator->move(block, {Place::device(0), Place::host(), 0, stream(1), true});
  allocator->release(moved);
  EXPECT_EQ(allocator->find(block)->references, 2u);
  allocator->release(again);
  EXPECT_EQ(allocator->find(block)->references, 1u);
  EXPECT_TRUE(allocator->find(block)->live);
  EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  EXPECT_FALSE(allocator->find(block)->live);
}

TEST_F(AllocatorTest, ABlockRefusesMoreRecordsThanItCanCount) {
  char* block = host(4 * kMiB);
  const MoveRequest there{Place::host(), Place::device(0), 0, stream(1), true};
  std::vector<MovedStorage*> records;
  while (MovedStorage* record = allocator->move(block, there)) records.push_back(record);
  EXPECT_EQ(records.size(), RealStorage::kMostReferences - 1u) << "the block's own is one";
  EXPECT_EQ(allocator->find(block)->references, RealStorage::kMostReferences);
  allocator->release(records.back());
  EXPECT_NE(allocator->move(block, there), nullptr) << "there is room for one again";
  EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
}

TEST_F(AllocatorTest, MovesThatNobodyReleasesShareOneRecordPerPlace) {
  char* block = host(4 * kMiB);
  auto move = [&](Place to) {
    MoveRequest request{Place::host(), to, 0, stream(1), true};
    request.held = false;
    return allocator->move(block, request);
  };
  MovedStorage* first = move(Place::device(0));
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(move(Place::device(0)), first);
    move(Place::host());
  }
  EXPECT_EQ(allocator->find(block)->references, 3u) << "its own, one there, one back";
  EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
}

TEST_F(AllocatorTest, MovesOfUnknownAddressesAreRefused) {
  int foreign = 0;
  EXPECT_EQ(allocator->move(&foreign, {Place::host(), Place::device(0), 0, nullptr, true}),
            nullptr);
  EXPECT_FALSE(allocator->record_use(&foreign, 0, nullptr));
  EXPECT_FALSE(FrameworkBridge(*allocator).mark_exported(&foreign));
  EXPECT_FALSE(allocator->find(&foreign));
}

TEST_F(AllocatorTest, AllThatLivesIsMarkedExportedAndNothingThatComesLater) {
  char* on_host = host(2 * kMiB);
  char* on_device = device(4 * kMiB);
  char* moved = host(8 * kMiB);
  to_device(moved);
  char* freed = device(6 * kMiB);
  allocator->free(freed);
  FrameworkBridge(*allocator).mark_live_exported();
  for (char* live : {on_host, on_device, moved}) EXPECT_TRUE(allocator->find(live)->exported);
  char* later = device(6 * kMiB);
  EXPECT_EQ(later, freed);
  EXPECT_FALSE(allocator->find(later)->exported);
  allocator->free(on_device);
  EXPECT_EQ(device(4 * kMiB), on_device);
  EXPECT_FALSE(allocator->find(on_device)->exported);
  allocator->inspection().check_invariants();
}

TEST_F(AllocatorTest, UsesAreTheBlocksOwnStreamAndTheRecordedOnes) {
  char* block = device(2 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  const std::vector<DeviceStream> both = {{0, stream(2)}, {0, stream(1)}};
  EXPECT_EQ(allocator->streams().uses_of(block + 5), both);
  allocator->free(block);
  char foreign = 0;
  EXPECT_TRUE(allocator->streams().uses_of(&foreign).empty());
}

TEST_F(AllocatorTest, AnExportedMarkGoesWithItsBlock) {
  char* block = host(4 * kMiB);
  EXPECT_TRUE(FrameworkBridge(*allocator).mark_exported(block + 100));
  EXPECT_TRUE(allocator->find(block)->exported);
  allocator->free(block);
  EXPECT_EQ(host(4 * kMiB), block);
  EXPECT_FALSE(allocator->find(block)->exported);
}

TEST_F(AllocatorTest, PinnedIsThePinnedFacadesUntilSomebodySaysOtherwiseOfABlock) {
  auto* pinned = static_cast<char*>(allocator->allocate(Facade::kPinned, 0, 4 * kMiB));
  char* on_device = device(4 * kMiB);
  EXPECT_TRUE(allocator->find(pinned)->pinned);
  EXPECT_FALSE(allocator->find(host(4 * kMiB))->pinned);
  EXPECT_FALSE(allocator->find(on_device)->pinned);
  FrameworkBridge(*allocator).set_pinned(pinned + 5, false);
  FrameworkBridge(*allocator).set_pinned(on_device, true);
  EXPECT_FALSE(allocator->find(pinned)->pinned);
  EXPECT_TRUE(allocator->find(on_device)->pinned);
  allocator->free(pinned);
  EXPECT_EQ(allocator->allocate(Facade::kPinned, 0, 4 * kMiB), pinned);
  EXPECT_TRUE(allocator->find(pinned)->pinned);
}

TEST_F(AllocatorTest, AFailingHintIsNoErrorOfTheProgram) {
  machine->failures["prefetch"] = 1;
  machine->failures["advise"] = 1;
  EXPECT_NE(device(4 * kMiB), nullptr);
  EXPECT_EQ(allocator->inspection().hints().of(HintKind::kPrefetch).failed, 1u);
}

TEST_F(AllocatorTest, EachOfTwoDevicesHasItsOwnMemory) {
  start(small_configuration(), 2);
  void* zero = allocator->allocate(Facade::kDevice, 0, 4 * kMiB, stream(1));
  allocator->free(zero);
  void* one = allocator->allocate(Facade::kDevice, 1, 4 * kMiB, stream(1));
  EXPECT_NE(zero, one);
  EXPECT_EQ(allocator->find(one)->location, Place::device(1));
}

TEST_F(AllocatorTest, WhatServingTookIsCountedForEachDeviceAndReset) {
  const auto service = [this] { return allocator->statistics().service[2][0]; };
  allocator->free(device(64 * kMiB));
  EXPECT_EQ(service().span_allocations.calls, 1u);
  EXPECT_GE(service().span_allocations.longest, service().span_allocations.shortest);
  EXPECT_THROW(device(512 * kMiB), OutOfMemoryError);
  EXPECT_EQ(service().pressure_rounds, 1u);
  EXPECT_EQ(service().out_of_memory, 1u);
  EXPECT_EQ(service().fence_waits, 1u);
  EXPECT_EQ(service().span_frees.calls, 1u);
  EXPECT_EQ(allocator->statistics().service[0][0].out_of_memory, 0u) << "another facade's";
  allocator->reset_totals(Facade::kDevice, 0);
  EXPECT_EQ(service().out_of_memory + service().span_allocations.calls, 0u);
  EXPECT_EQ(allocator->statistics().out_of_memory, 1u) << "the process's own figure stays";
}

TEST_F(AllocatorTest, ADisplacedBlocksPagesCountWhereTheyAreUsed) {
  char* block = host(8 * kMiB);
  to_device(block);
  allocator->free(block);
  auto reserved = [&](std::size_t facade) {
    return allocator->statistics().classes[facade][0][kSizeClasses].reserved_bytes.current;
  };
  EXPECT_EQ(reserved(0), 8 * kMiB);
  char* displaced = device(6 * kMiB);
  ASSERT_EQ(displaced, block) << "the pages are on the device already";
  EXPECT_EQ(reserved(0), 2 * kMiB);
  EXPECT_EQ(reserved(2), 6 * kMiB);
  for (const SegmentDescription& segment : allocator->inspection().segments()) {
    EXPECT_EQ(segment.facade == Facade::kDevice, segment.base == displaced);
  }
  allocator->free(displaced);
  EXPECT_EQ(reserved(0), 8 * kMiB);
  EXPECT_EQ(reserved(2), 0u);
}

TEST_F(AllocatorTest, OneFacadesCacheIsGivenBackAlone) {
  allocator->free(device(4 * kMiB));
  allocator->free(allocator->allocate(Facade::kPinned, 0, 6 * kMiB));
  allocator->release_cached_of(Facade::kPinned);
  const Statistics now = allocator->statistics();
  EXPECT_EQ(now.classes[1][0][kSizeClasses].reserved_bytes.current, 0u);
  EXPECT_EQ(now.classes[2][0][kSizeClasses].reserved_bytes.current, 4 * kMiB);
}

TEST_F(AllocatorTest, StatisticsCountBlocksBytesAndPeaks) {
  char* a = device(1000);
  char* b = host(3 * kMiB);
  Statistics now = allocator->statistics();
  const ClassStatistics& small = now.classes[2][0][0];
  EXPECT_EQ(small.allocated_bytes.current, 1024u);
  EXPECT_EQ(small.requested_bytes.current, 1000u);
  EXPECT_EQ(small.reserved_bytes.current, 256 * 1024u);
  EXPECT_EQ(now.classes[2][0][1].reserved_bytes.current, 2 * kMiB - 256 * 1024u);
  EXPECT_EQ(now.classes[2][0][2].reserved_bytes.current, 2 * kMiB);
  EXPECT_EQ(now.facade_bytes[0].current, 4 * kMiB);
  allocator->free(a);
  allocator->free(b);
  now = allocator->statistics();
  EXPECT_EQ(now.live_bytes.current, 0u);
  EXPECT_EQ(now.live_bytes.peak, 4 * kMiB + 1024);
  EXPECT_EQ(now.classes[2][0][0].active_bytes.current, 0u);
  EXPECT_EQ(now.classes[0][0][1].active_blocks.current, 0u);
  allocator->reset_peaks(Facade::kDevice, 0);
  EXPECT_EQ(allocator->statistics().classes[2][0][0].allocated_bytes.peak, 0u);
}

TEST(AllocatorStart, ADeviceWhosePagesDoNotMigrateIsRefused) {
  auto machine = std::make_shared<testing::FakeMachine>();
  machine->capabilities.migrates_on_fault = false;
  EXPECT_THROW(
      CachingManagedAllocator(std::make_unique<testing::FakeRuntime>(machine), Configuration{}),
      std::runtime_error);
}

// Blocks in two spans are never joined, so one span must hold the whole budget.
TEST_F(AllocatorTest, FreeBlocksAreJoinedThroughoutTheBudgetWhereMemoryIsVirtual) {
  Configuration configuration = without_thread_caches();
  configuration.span_bytes.reset();
  configuration.budget_bytes = 4096 * kMiB;
  start(configuration);
  std::vector<char*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(device(800 * kMiB));
  for (char* block : blocks) allocator->free(block);
  char* all = device(4000 * kMiB);
  EXPECT_EQ(allocator->statistics().touched_bytes.peak, 4000 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 4096 * kMiB);
  allocator->free(all);
}

// Without discard, only whole spans can be released, so spans must not be too large.
TEST_F(AllocatorTest, WhereNothingCanBeDiscardedASpanHasRoomForSomeRequestsLikeTheFirst) {
  Configuration configuration = without_thread_caches();
  configuration.span_bytes.reset();
  configuration.budget_bytes = 4096 * kMiB;
  DeviceCapabilities without_discard = machine->capabilities;
  without_discard.discard = false;
  start(configuration, 1, without_discard);
  device(2 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 32 * kMiB);
  // Each request is a little larger than the one before, like batches of texts.
  for (std::size_t size = 100; size <= 150; ++size) allocator->free(device(size * kMiB));
  EXPECT_EQ(allocator->statistics().span_bytes.current, 832 * kMiB);
  EXPECT_EQ(allocator->statistics().touched_bytes.peak, 152 * kMiB);
  device(1000 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 832 * kMiB + 4096 * kMiB) << "the budget";
}

// The driver keeps the pages of managed host memory until their span is freed.
TEST_F(AllocatorTest, ASmallHostBlockKeepsNoMoreThanASmallSpan) {
  Configuration configuration = without_thread_caches();
  configuration.span_bytes.reset();
  configuration.budget_bytes = 4096 * kMiB;
  for (const Facade facade : {Facade::kHost, Facade::kPinned}) {
    start(configuration);
    std::vector<void*> blocks;
    for (std::size_t size_mib : {4, 60, 4, 300, 4}) {
      blocks.push_back(allocator->allocate(facade, 0, size_mib * kMiB));
    }
    allocator->allocate(facade, 0, 512);
    for (void* block : blocks) allocator->free(block);
    allocator->release_cached();
    EXPECT_EQ(allocator->statistics().span_bytes.current, 32 * kMiB);
    EXPECT_EQ(allocator->statistics().touched_bytes.current, 14 * kMiB);
  }
}

TEST_F(AllocatorTest, FreeHostSpansOfOtherSizesAreHeldToAQuarterOfWhatIsInUse) {
  Configuration configuration = without_thread_caches();
  configuration.span_bytes.reset();
  configuration.budget_bytes = 8192 * kMiB;
  start(configuration);
  host(1024 * kMiB);
  // Each request is larger than the one before, like batches of texts.
  for (std::size_t size = 100; size <= 150; size += 2) allocator->free(host(size * kMiB));
  EXPECT_EQ(allocator->statistics().touched_bytes.peak, (1024 + 124 + 126 + 128) * kMiB);
}

TEST_F(AllocatorTest, FreeHostSpansGoBackWhileOthersServeAllRequests) {
  Configuration configuration = without_thread_caches();
  configuration.span_bytes.reset();
  configuration.budget_bytes = 8192 * kMiB;
  start(configuration);
  std::vector<void*> blocks;
  for (int block = 0; block < 10; ++block) blocks.push_back(host(100 * kMiB));
  for (void* block : blocks) allocator->free(block);
  for (std::uint64_t step = 0; step < policy::kRequestsPerTrim; ++step) {
    allocator->free(host(50 * kMiB));
  }
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 100 * kMiB) << "the one that serves";
}

TEST_F(AllocatorTest, AddressSpaceIsSharedOutAmongTheAllocatorsOfAProcess) {
  machine->allocatable_bytes = 64 * 1024 * kMiB;
  allocator.reset();
  Configuration configuration = without_thread_caches();
  configuration.span_bytes.reset();
  configuration.budget_bytes = 8 * 1024 * kMiB;
  std::vector<std::unique_ptr<CachingManagedAllocator>> allocators;
  for (int count = 0; count < testing::steps(100, 10); ++count) {
    allocators.push_back(std::make_unique<CachingManagedAllocator>(
        std::make_unique<testing::FakeRuntime>(machine), configuration));
    for (const Facade facade : {Facade::kHost, Facade::kPinned, Facade::kDevice}) {
      ASSERT_NE(allocators.back()->allocate(facade, 0, 5 * kMiB), nullptr);
    }
  }
  EXPECT_EQ(allocators.front()->statistics().span_bytes.current, (8 * 1024 + 64) * kMiB);
  EXPECT_EQ(allocators[3]->statistics().span_bytes.current, (2 * 1024 + 64) * kMiB) << "the fourth";
}

TEST_F(AllocatorTest, AMissingAddressSpaceIsNamed) {
  machine->allocatable_bytes = 0;
  const std::string text = refusal(5 * kMiB);
  EXPECT_NE(text.find("256 MiB of the budget are unused, so the process has no address space "
                      "left (this allocator has reserved 0 B;"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("UVMALLOC_BUDGET"), std::string::npos) << text;
}

TEST_F(AllocatorTest, LessAddressSpaceIsRequestedIfTheDriverRefusesMore) {
  Configuration configuration = without_thread_caches();
  configuration.span_bytes = 256 * kMiB;
  start(configuration);
  machine->allocatable_bytes = 100 * kMiB;
  char* first = device(6 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 64 * kMiB);
  EXPECT_THROW(device(60 * kMiB), OutOfMemoryError);
  char* second = device(30 * kMiB);
  char* third = device(30 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 96 * kMiB);
  for (char* block : {first, second, third}) {
    ASSERT_NE(block, nullptr);
    allocator->free(block);
  }
}

TEST_F(AllocatorTest, ARefusedSizeIsNotRequestedAgainAtOnce) {
  auto requests = [&] { return allocator->inspection().runtime_calls()["allocate_managed"]; };
  Configuration configuration = without_thread_caches();
  configuration.span_bytes = 256 * kMiB;
  start(configuration);
  machine->allocatable_bytes = 10 * kMiB;
  device(8 * kMiB);
  EXPECT_EQ(requests(), 6u) << "256 MiB and its halves, down to 8";
  machine->allocatable_bytes = 20 * kMiB;
  device(8 * kMiB);
  EXPECT_EQ(requests(), 8u) << "twice of that, then that";
  machine->allocatable_bytes = 1024 * kMiB;
  for (int i = 0; i < 3; ++i) device(8 * kMiB);
  EXPECT_EQ(requests(), 10u);
  EXPECT_EQ(allocator->statistics().span_bytes.current, (8 + 8 + 16 + 32) * kMiB) << "more again";
}

}  // namespace
}  // namespace uvm
