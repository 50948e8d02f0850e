#include "hints/oversubscription/move_lanes.hpp"

#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fake_runtime.hpp"

namespace uvm::live {
namespace {

using testing::FakeMachine;
using testing::FakeRuntime;
using testing::stream;

// Memory that is free, with one stream that may use it.
struct FreeMemory final : PageOwner {
  bool is_ours(PageNumber) const override { return true; }
  Discarded take_free(PageNumber, DeviceStream* out) override {
    *out = user;
    return Discarded::kYes;
  }
  DeviceStream user{0, stream(1)};
};

// Memory whose owner has given it back to the driver.
struct GoneMemory final : PageOwner {
  bool is_ours(PageNumber) const override { return false; }
  Discarded take_free(PageNumber, DeviceStream*) override { return Discarded::kRefused; }
};

TEST(MoveListTest, MemoryThatIsGoneIsNotMoved) {
  GoneMemory gone;
  MoveList list(gone, /*discards=*/true);
  const PageNumber page{5};
  list.leave(page, Place::host(), 1);
  list.leave_peer(page);
  list.keep_copy(page);
  list.use_in_place(page, 1);
  list.bring(page, Arrival::kCopied, 2);
  EXPECT_EQ(list.discard(page, 1), Discarded::kRefused);
  std::vector<PlannedMove> moves;
  list.take(&moves);
  EXPECT_TRUE(moves.empty());
}

void send_list(MoveLanes& lanes, MoveList* list) {
  std::vector<PlannedMove> moves;
  list->take(&moves);
  lanes.send(moves);
}

// Lanes with functions that send one move each.
struct TestLanes : MoveLanes {
  using MoveLanes::MoveLanes;

  template <class Plan>
  void send_planned(Plan plan) {
    plan(moves);
    send_list(*this, &moves);
  }
  void leave(std::uintptr_t page, Place place, KernelNumber last_use) {
    send_planned([&](MoveList& list) { list.leave(PageNumber{page}, place, last_use); });
  }
  void leave_peer(std::uintptr_t page) {
    send_planned([&](MoveList& list) { list.leave_peer(PageNumber{page}); });
  }
  void discard(std::uintptr_t page, const DeviceStream& user, KernelNumber freed) {
    memory.user = user;
    send_planned([&](MoveList& list) { list.discard(PageNumber{page}, freed); });
  }
  void keep_copy(std::uintptr_t page) {
    send_planned([&](MoveList& list) { list.keep_copy(PageNumber{page}); });
  }
  void end_copy(std::uintptr_t page) {
    send_planned([&](MoveList& list) { list.end_copy(PageNumber{page}); });
  }
  void drop(std::uintptr_t page, KernelNumber last_use) {
    send_planned([&](MoveList& list) { list.drop(PageNumber{page}, last_use); });
  }
  void use_in_place(std::uintptr_t page, KernelNumber last_use) {
    send_planned([&](MoveList& list) { list.use_in_place(PageNumber{page}, last_use); });
  }
  void end_in_place(std::uintptr_t page) {
    send_planned([&](MoveList& list) { list.end_in_place(PageNumber{page}); });
  }
  void to_device(std::uintptr_t page, Arrival arrival) {
    send_planned([&](MoveList& list) { list.bring(PageNumber{page}, arrival, 1); });
  }
  void wait_for(std::uintptr_t page) {
    send_planned([&](MoveList& list) { list.wait_for(PageNumber{page}); });
  }

  FreeMemory memory;
  MoveList moves{memory, /*discards=*/true};
};

struct MoveLanesTest : ::testing::Test {
  std::shared_ptr<FakeMachine> machine = std::make_shared<FakeMachine>();
  FakeRuntime runtime{machine};
  EventPool events{runtime, 1};
  HintCounters counters;
  std::set<PageNumber> last_pages;  // of allocations
  const MoveLanes::MayJoin may_join = [this](PageNumber page) {
    return !last_pages.contains(page);
  };
  TestLanes lanes{runtime, events, counters, 0, /*batches=*/false, may_join};

  std::size_t waits_of(const std::string& who) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        machine->waits, [&](const std::string& wait) { return wait.starts_with(who); }));
  }
};

TEST_F(MoveLanesTest, APageLeavesAfterTheStreamAndTheNextOneComesAfterIt) {
  lanes.begin({0, stream(1)}, 1);
  lanes.leave(7, Place::host(), 1);
  lanes.to_device(9, Arrival::kCopied);
  lanes.wait_for(9);
  ASSERT_EQ(machine->hints.size(), 2u);
  EXPECT_EQ(machine->hints[0].place, Place::host());
  EXPECT_EQ(machine->hints[0].address, reinterpret_cast<void*>(7 * kPageBytes));
  EXPECT_EQ(machine->hints[1].place, Place::device(0));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1",
                                                      "stream lane waits for stream lane",
                                                      "stream 1 waits for stream lane"}));
}

TEST_F(MoveLanesTest, APageThatNeedsNoChunkOfTheLastEvictionsDoesNotWaitForThem) {
  lanes.begin({0, stream(1)}, 1);
  const auto bring = [this](std::uintptr_t page, std::size_t free_chunks) {
    machine->waits.clear();
    lanes.send_planned(
        [&](MoveList& list) { list.bring(PageNumber{page}, Arrival::kCopied, 1, free_chunks); });
    return machine->waits.size();
  };
  lanes.leave(7, Place::host(), 1);
  lanes.leave(8, Place::host(), 1);
  EXPECT_EQ(bring(20, 2), 0u) << "both chunks are beyond those that it needs";
  EXPECT_EQ(bring(21, 1), 1u) << "the first of the two";
  EXPECT_EQ(bring(22, 1), 0u);
  EXPECT_EQ(bring(23, 0), 1u) << "the second one";
}

TEST_F(MoveLanesTest, AStreamWaitsOnceAndOnlyForPagesThatWereBrought) {
  lanes.begin({0, stream(1)}, 1);
  lanes.wait_for(9);
  EXPECT_TRUE(machine->waits.empty());
  lanes.to_device(9, Arrival::kCopied);
  lanes.wait_for(9);
  lanes.wait_for(9);
  EXPECT_EQ(waits_of("stream 1 waits"), 1u);
}

TEST_F(MoveLanesTest, AFailedMoveIsCountedAndNobodyWaitsForIt) {
  machine->failures["prefetch"] = 2;
  lanes.begin({0, stream(1)}, 1);
  lanes.leave(7, Place::host(), 1);
  lanes.to_device(9, Arrival::kCopied);
  lanes.wait_for(9);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 2u);
  EXPECT_EQ(waits_of("stream 1 waits"), 0u);
}

TEST_F(MoveLanesTest, WithoutStreamsOrEventsNothingIsSent) {
  machine->failures["create_stream"] = 2;
  lanes.begin({0, stream(1)}, 1);
  lanes.leave(7, Place::host(), 1);
  lanes.to_device(9, Arrival::kCopied);
  EXPECT_TRUE(machine->hints.empty());
  machine->failures["create_event"] = 1;
  lanes.leave(7, Place::host(), 1);
  EXPECT_TRUE(machine->hints.empty()) << "it could not wait for the stream's kernels";
}

TEST_F(MoveLanesTest, ADiscardIsBetweenTheWorkOfItsStreamSoFarAndLater) {
  lanes.begin({0, stream(1)}, 1);
  lanes.discard(7, {0, stream(2)}, 0);
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 2",
                                                      "stream 2 waits for stream lane"}));
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 1u);
}

TEST_F(MoveLanesTest, APageThatCannotBeDiscardedGoesToTheHost) {
  machine->capturing = {stream(2)};
  lanes.begin({0, stream(1)}, 1);
  lanes.discard(7, {0, stream(2)}, 0);
  ASSERT_EQ(machine->hints.size(), 1u) << "its stream is being captured";
  machine->failures["discard"] = 1;
  lanes.discard(8, {0, stream(1)}, 0);
  ASSERT_EQ(machine->hints.size(), 2u);
  EXPECT_EQ(machine->hints[1].place, Place::host());
  EXPECT_EQ(machine->hints[1].address, reinterpret_cast<void*>(8 * kPageBytes));
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 0u);
  EXPECT_EQ(counters.of(HintKind::kDiscard).failed, 1u);
}

TEST_F(MoveLanesTest, ArrivalsThatAreHeldWaitForTheStreamUntilTheNextList) {
  MoveList& moves = lanes.moves;
  lanes.begin({0, stream(1)}, 1);
  moves.hold_arrivals();
  moves.bring(PageNumber{7}, Arrival::kCopied, 1);
  send_list(lanes, &moves);
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1"}));
  lanes.begin({0, stream(1)}, 1);
  machine->waits.clear();
  for (std::uintptr_t page = 8; page < 8 + policy::kLanesEachWay; ++page)
    moves.bring(PageNumber{page}, Arrival::kCopied, 1);
  send_list(lanes, &moves);
  EXPECT_TRUE(machine->waits.empty());
}

TEST_F(MoveLanesTest, NeighboursWithCopiesLeaveByAdviceWhenTheStreamIsDone) {
  lanes.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {7u, 8u, 20u}) lanes.keep_copy(page);
  machine->hints.clear();
  for (const std::uintptr_t page : {8u, 20u, 7u}) lanes.drop(page, 1);
  EXPECT_TRUE(machine->hints.empty());
  machine->busy = {stream(1)};
  lanes.to_device(9, Arrival::kCopied);
  EXPECT_TRUE(machine->busy.empty()) << "the host has waited";
  const auto at = [](std::uintptr_t page) { return reinterpret_cast<void*>(page * kPageBytes); };
  const auto advice = [&](Advice what, std::uintptr_t page, std::size_t pages) {
    return Hint{HintKind::kAdvise, what, Place::host(), at(page), pages * kPageBytes};
  };
  EXPECT_EQ(machine->hints,
            (std::vector<Hint>{
                advice(Advice::kUnsetReadMostly, 7, 2), advice(Advice::kSetReadMostly, 7, 2),
                advice(Advice::kUnsetReadMostly, 20, 1), advice(Advice::kSetReadMostly, 20, 1),
                Hint{HintKind::kPrefetch, {}, Place::device(0), at(9), kPageBytes}}));
}

TEST_F(MoveLanesTest, WhoeverWaitsUntilAllHaveLeftWaitsForPagesWithCopiesToo) {
  lanes.begin({0, stream(1)}, 1);
  lanes.keep_copy(7);
  lanes.drop(7, 1);
  machine->hints.clear();
  lanes.wait_until_left();
  ASSERT_EQ(machine->hints.size(), 2u);
  EXPECT_EQ(machine->hints[0].advice, Advice::kUnsetReadMostly);
  EXPECT_EQ(machine->hints[0].address, reinterpret_cast<void*>(7 * kPageBytes));
}

TEST_F(MoveLanesTest, AdviceForCopiesEndsWithThem) {
  const auto last = [&] { return machine->hints.back(); };
  {
    TestLanes own(runtime, events, counters, 0, false, may_join);
    own.begin({0, stream(1)}, 1);
    own.keep_copy(7);
    own.keep_copy(8);
    EXPECT_EQ(last().advice, Advice::kSetReadMostly);
    own.end_copy(7);
    EXPECT_EQ(last().advice, Advice::kUnsetReadMostly);
    EXPECT_EQ(last().address, reinterpret_cast<void*>(7 * kPageBytes));
  }
  EXPECT_EQ(last().advice, Advice::kUnsetReadMostly);
  EXPECT_EQ(last().address, reinterpret_cast<void*>(8 * kPageBytes));
  EXPECT_EQ(machine->hints[machine->hints.size() - 2].place, Place::device(0));
}

TEST_F(MoveLanesTest, APageOfAPeerGoesOnToTheHostAfterItHasLeftAndBeforeItComesBack) {
  lanes.begin({0, stream(1)}, 1);
  lanes.leave(7, Place::device(1), 1);
  EXPECT_EQ(machine->hints.back().place, Place::device(1));
  machine->waits.clear();
  lanes.leave_peer(7);
  EXPECT_EQ(machine->hints.back().place, Place::host());
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream lane"}))
      << "it waits for nothing but the page";
  machine->waits.clear();
  lanes.to_device(7, Arrival::kCopied);
  // One wait for the page's move to the host, one for its first chunk.
  EXPECT_EQ(waits_of("stream lane waits for stream lane"), 2u);
}

TEST_F(MoveLanesTest, APageThatIsReadInPlaceIsAdvisedSoUntilThatEndsOrTheLanesDo) {
  const auto at = [](std::uintptr_t page) { return reinterpret_cast<void*>(page * kPageBytes); };
  const auto advice = [&](Advice what, Place place, std::uintptr_t page) {
    return Hint{HintKind::kAdvise, what, place, at(page), kPageBytes};
  };
  const auto end_of = [&](std::uintptr_t page) {
    return std::vector<Hint>{advice(Advice::kUnsetAccessedBy, Place::device(0), page),
                             advice(Advice::kSetPreferredLocation, Place::device(0), page)};
  };
  {
    TestLanes own(runtime, events, counters, 0, false, may_join);
    own.begin({0, stream(1)}, 1);
    own.use_in_place(7, 1);
    EXPECT_EQ(machine->hints,
              (std::vector<Hint>{advice(Advice::kSetPreferredLocation, Place::host(), 7),
                                 advice(Advice::kSetAccessedBy, Place::device(0), 7),
                                 Hint{HintKind::kPrefetch, {}, Place::host(), at(7), kPageBytes}}));
    machine->hints.clear();
    own.end_in_place(7);
    EXPECT_EQ(machine->hints, end_of(7));
    own.use_in_place(8, 1);
    machine->hints.clear();
  }
  EXPECT_EQ(machine->hints, end_of(8));
}

TEST_F(MoveLanesTest, ADiscardWaitsForTheEventAfterTheFreeWhereThatIsKnown) {
  for (KernelNumber kernel = 1; kernel <= 3; ++kernel) lanes.begin_kernel({0, stream(1)}, kernel);
  const std::size_t recorded = machine->records;
  lanes.discard(7, {0, stream(1)}, 1);
  EXPECT_EQ(machine->records, recorded + 2) << "for the chunk and for the stream, none before it";
  lanes.discard(8, {0, stream(1)}, 0);
  EXPECT_EQ(machine->records, recorded + 5);
}

TEST_F(MoveLanesTest, PagesThatMoveWithoutACopyHaveLanesOfTheirOwn) {
  lanes.begin({0, stream(1)}, 1);
  for (std::uintptr_t page = 0; page < policy::kLanesEachWay; ++page)
    lanes.to_device(page, Arrival::kCopied);
  EXPECT_EQ(machine->streams, static_cast<int>(policy::kLanesEachWay));
  lanes.to_device(20, Arrival::kNew);
  EXPECT_EQ(machine->streams, static_cast<int>(policy::kLanesEachWay) + 1);
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 0u);
  lanes.to_device(21, Arrival::kDropped);
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 1u);
}

TEST_F(MoveLanesTest, EventsAreUsedAgain) {
  for (std::uintptr_t round = 0; round < 2000; ++round) {
    lanes.begin_kernel({0, stream(1)}, round + 1);
    lanes.leave(round, Place::host(), 1);
    lanes.to_device(1000 + round, Arrival::kCopied);
    lanes.wait_for(1000 + round);
  }
  EXPECT_LE(machine->events.size(), policy::kMostEvictions + policy::kMostKernelEvents + 8);
}

TEST_F(MoveLanesTest, AForkedChildDestroysNothingOfItsParent) {
  {
    TestLanes inherited(runtime, events, counters, 0, false, may_join);
    inherited.begin({0, stream(1)}, 1);
    inherited.leave(7, Place::host(), 1);
    ASSERT_EQ(machine->streams, 1);
    inherited.abandon();
  }
  EXPECT_EQ(machine->streams, 1);
  // In this test, the parent's events belong to this process.
  while (!machine->events.empty()) (void)runtime.destroy_event(0, *machine->events.begin());
}

// Lanes of a device that takes batches.
struct MoveBatchTest : MoveLanesTest {
  MoveBatchTest() { machine->capabilities.batches = true; }

  TestLanes batching{runtime, events, counters, 0, /*batches=*/true, may_join};
  FreeMemory memory;
  MoveList moves{memory, /*discards=*/true};

  static Hint to(Place place, std::uintptr_t page, std::size_t pages = 1) {
    return {HintKind::kPrefetch, {}, place, start_of_page(PageNumber{page}), pages * kPageBytes};
  }
  static Hint discard_of(std::uintptr_t page, std::size_t pages = 1) {
    return {HintKind::kDiscard,
            {},
            Place::nowhere(),
            start_of_page(PageNumber{page}),
            pages * kPageBytes};
  }
  void send() { send_list(batching, &moves); }
};

TEST_F(MoveBatchTest, PagesLeaveByOneCallAndComeByOneWithNeighboursInOneRange) {
  batching.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {4u, 20u, 3u}) {
    moves.leave(PageNumber{page}, Place::host(), 1);
    moves.bring(PageNumber{100 + 2 * page}, Arrival::kCopied, 1);
    moves.wait_for(PageNumber{100 + 2 * page});
  }
  send();
  EXPECT_EQ(machine->batches,
            (std::vector<std::vector<Hint>>{{to(Place::host(), 3, 2), to(Place::host(), 20)},
                                            {to(Place::device(0), 106), to(Place::device(0), 108),
                                             to(Place::device(0), 140)}}));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1",
                                                      "stream lane waits for stream lane",
                                                      "stream 1 waits for stream lane"}))
      << "one wait for all pages each";
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 6u) << "hints are counted by page";
}

TEST_F(MoveBatchTest, APageAloneTakesAnOrdinaryCallAndNeighboursOneRange) {
  batching.begin({0, stream(1)}, 1);
  moves.leave(PageNumber{5}, Place::host(), 1);
  send();
  EXPECT_TRUE(machine->batches.empty());
  EXPECT_EQ(machine->hints, (std::vector<Hint>{to(Place::host(), 5)}));
  for (std::uintptr_t page = 7; page < 10; ++page) moves.leave(PageNumber{page}, Place::host(), 1);
  send();
  EXPECT_EQ(machine->batches, (std::vector<std::vector<Hint>>{{to(Place::host(), 7, 3)}}));
}

TEST_F(MoveBatchTest, NoRangeOfACallReachesIntoTheNextAllocation) {
  batching.begin({0, stream(1)}, 1);
  last_pages = {PageNumber{8}};
  for (std::uintptr_t page = 7; page < 11; ++page) moves.leave(PageNumber{page}, Place::host(), 1);
  send();
  EXPECT_EQ(machine->batches,
            (std::vector<std::vector<Hint>>{{to(Place::host(), 7, 2), to(Place::host(), 9, 2)}}));
  machine->hints.clear();
  for (std::uintptr_t page = 7; page < 11; ++page) moves.keep_copy(PageNumber{page});
  send();
  std::vector<std::pair<void*, std::size_t>> advised;
  for (const Hint& hint : machine->hints) advised.emplace_back(hint.address, hint.size_bytes);
  using Ranges = std::vector<std::pair<void*, std::size_t>>;
  EXPECT_EQ(advised, (Ranges{{start_of_page(PageNumber{7}), 2 * kPageBytes},
                             {start_of_page(PageNumber{7}), 2 * kPageBytes},
                             {start_of_page(PageNumber{9}), 2 * kPageBytes},
                             {start_of_page(PageNumber{9}), 2 * kPageBytes}}));
}

TEST_F(MoveBatchTest, NeighboursThatGoToDifferentPlacesAreTwoRangesOfOneCall) {
  batching.begin({0, stream(1)}, 1);
  moves.leave(PageNumber{7}, Place::host(), 1);
  moves.leave(PageNumber{8}, Place::device(1), 1);
  send();
  EXPECT_EQ(machine->batches,
            (std::vector<std::vector<Hint>>{{to(Place::host(), 7), to(Place::device(1), 8)}}));
}

TEST_F(MoveBatchTest, APageForTheNextKernelNeverComesWithOneOfALaterKernel) {
  batching.begin_kernel({0, stream(1)}, 10);
  const auto bring = [&](std::uintptr_t page, KernelNumber need) {
    moves.bring(PageNumber{page}, Arrival::kCopied, need);
  };
  bring(1, 10);
  bring(3, 10);
  bring(7, 26);
  bring(9, 34);
  send();
  EXPECT_EQ(machine->batches,
            (std::vector<std::vector<Hint>>{{to(Place::device(0), 1), to(Place::device(0), 3)},
                                            {to(Place::device(0), 7), to(Place::device(0), 9)}}));
  machine->batches.clear();
  bring(11, 10);
  bring(13, 11);
  send();
  bring(15, 26);
  bring(17, 35);
  send();
  EXPECT_TRUE(machine->batches.empty());
}

TEST_F(MoveBatchTest, APageThatComesAndLeavesAgainDoesSoInThatOrder) {
  batching.begin({0, stream(1)}, 1);
  moves.bring(PageNumber{7}, Arrival::kCopied, 1);
  moves.leave(PageNumber{7}, Place::host(), 1);
  moves.bring(PageNumber{7}, Arrival::kCopied, 1);
  send();
  EXPECT_EQ(machine->hints, (std::vector<Hint>{to(Place::device(0), 7), to(Place::host(), 7),
                                               to(Place::device(0), 7)}));
}

TEST_F(MoveBatchTest, PagesThatAreCopiedComeInRoundsAndOthersTogether) {
  batching.begin({0, stream(1)}, 1);
  const std::size_t pages = 2 * policy::kRoundPages;
  for (std::uintptr_t page = 0; page < pages; ++page)
    moves.bring(PageNumber{2 * page}, Arrival::kNew, 1);
  send();
  ASSERT_EQ(machine->batches.size(), 1u);
  EXPECT_EQ(machine->batches[0].size(), pages);
  machine->batches.clear();
  for (std::uintptr_t page = 100; page < 100 + pages; ++page)
    moves.bring(PageNumber{2 * page}, Arrival::kCopied, 1);
  send();
  ASSERT_EQ(machine->batches.size(), 2u);
  EXPECT_EQ(machine->batches[0].size(), policy::kRoundPages);
}

TEST_F(MoveBatchTest, APageWaitsForNoMoveOfTheNextGroup) {
  batching.begin({0, stream(1)}, 1);
  moves.leave(PageNumber{3}, Place::host(), 1);
  moves.bring(PageNumber{5}, Arrival::kCopied, 1);
  moves.end_group();
  moves.leave(PageNumber{7}, Place::host(), 1);
  moves.bring(PageNumber{9}, Arrival::kCopied, 20);
  send();
  EXPECT_EQ(machine->hints, (std::vector<Hint>{to(Place::host(), 3), to(Place::device(0), 5),
                                               to(Place::host(), 7), to(Place::device(0), 9)}));
}

TEST_F(MoveBatchTest, MoreMovesThanABatchHoldsTakeSeveral) {
  batching.begin({0, stream(1)}, 1);
  const std::size_t pages = DeviceRuntime::kMostBatchMoves + 2;
  for (std::uintptr_t page = 0; page < pages; ++page)
    moves.leave(PageNumber{2 * page}, Place::host(), 1);
  send();
  ASSERT_EQ(machine->batches.size(), 2u);
  EXPECT_EQ(machine->batches[0].size(), DeviceRuntime::kMostBatchMoves);
  EXPECT_EQ(machine->batches[1].size(), 2u);
}

TEST_F(MoveBatchTest, PagesOfOneStreamAreDiscardedByOneCallAndNewOnesComeByOne) {
  batching.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {3u, 5u}) {
    moves.discard(PageNumber{page}, 0);
    moves.bring(PageNumber{100 + page}, Arrival::kDropped, 1);
  }
  memory.user = {0, stream(2)};
  moves.discard(PageNumber{7}, 0);
  send();
  EXPECT_EQ(machine->batches, (std::vector<std::vector<Hint>>{
                                  {discard_of(3), discard_of(5)},
                                  {to(Place::device(0), 103), to(Place::device(0), 105)}}));
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 5u);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 2u);
}

TEST_F(MoveBatchTest, PagesOfARefusedBatchMoveOneByOneAndTheNextOnesInABatchAgain) {
  machine->failures["prefetch_batch"] = 1;
  batching.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {3u, 5u}) moves.leave(PageNumber{page}, Place::host(), 1);
  send();
  EXPECT_TRUE(machine->batches.empty());
  EXPECT_EQ(machine->hints, (std::vector<Hint>{to(Place::host(), 3), to(Place::host(), 5)}));
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 0u);
  for (const std::uintptr_t page : {7u, 9u}) moves.leave(PageNumber{page}, Place::host(), 1);
  send();
  EXPECT_EQ(machine->batches.size(), 1u);
}

TEST_F(MoveBatchTest, OfARefusedBatchOnlyThePageIsLostThatTheDriverRefusesAlone) {
  machine->failures["prefetch_batch"] = 1;
  machine->failures["prefetch"] = 1;
  batching.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {3u, 5u}) moves.bring(PageNumber{page}, Arrival::kCopied, 1);
  moves.wait_for(PageNumber{3});
  send();
  EXPECT_EQ(machine->hints, (std::vector<Hint>{to(Place::device(0), 5)}));
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 1u);
  EXPECT_EQ(waits_of("stream 1 waits"), 0u) << "nobody waits for page 3";
  batching.wait_for(5);
  EXPECT_EQ(waits_of("stream 1 waits"), 1u);
}

TEST_F(MoveBatchTest, ADriverThatTakesNoBatchesIsNotAskedAgain) {
  machine->failures["batches"] = 1;
  batching.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {3u, 5u}) moves.leave(PageNumber{page}, Place::host(), 1);
  send();
  EXPECT_FALSE(batching.sends_batches());
  for (const std::uintptr_t page : {7u, 9u}) moves.leave(PageNumber{page}, Place::host(), 1);
  send();
  EXPECT_TRUE(machine->batches.empty());
  EXPECT_EQ(machine->hints, (std::vector<Hint>{to(Place::host(), 3), to(Place::host(), 5),
                                               to(Place::host(), 7), to(Place::host(), 9)}));
}

TEST_F(MoveBatchTest, DiscardsThatARefusedBatchHeldAreSentOneByOne) {
  machine->failures["discard_batch"] = 1;
  machine->failures["discard"] = 1;
  batching.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {3u, 5u}) moves.discard(PageNumber{page}, 0);
  send();
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 1u);
  EXPECT_EQ(machine->hints, (std::vector<Hint>{to(Place::host(), 3)})) << "its chunk is needed";
}

TEST_F(MoveBatchTest, APageWaitsForTheLastKernelOfEachStreamThatUsedThePagesThatLeave) {
  batching.begin_kernel({0, stream(1)}, 1);
  batching.begin_kernel({0, stream(2)}, 2);
  batching.begin_kernel({0, stream(1)}, 3);
  batching.begin_kernel({0, stream(2)}, 4);
  batching.begin_kernel({0, stream(1)}, 5);
  moves.leave(PageNumber{10}, Place::host(), 1);
  moves.leave(PageNumber{12}, Place::host(), 2);
  moves.leave(PageNumber{14}, Place::host(), 3);
  send();
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1",
                                                      "stream lane waits for stream 2"}));
}

TEST_F(MoveBatchTest, AdviceForNeighboursIsOneCall) {
  batching.begin({0, stream(1)}, 1);
  for (const std::uintptr_t page : {8u, 7u}) {
    moves.keep_copy(PageNumber{page});
    moves.bring(PageNumber{page}, Arrival::kCopied, 1);
  }
  send();
  ASSERT_EQ(machine->hints.size(), 3u);
  EXPECT_EQ(machine->hints[1], (Hint{HintKind::kAdvise, Advice::kSetReadMostly, Place::host(),
                                     start_of_page(PageNumber{7}), 2 * kPageBytes}));
  EXPECT_EQ(machine->hints[2], to(Place::device(0), 7, 2));
}

}  // namespace
}  // namespace uvm::live
