#include "hints/live/move_lanes.hpp"

#include <gtest/gtest.h>

#include "tests/support/fake_runtime.hpp"

namespace uvm::live {
namespace {

using testing::FakeMachine;
using testing::FakeRuntime;
using testing::stream;

struct MoveLanesTest : ::testing::Test {
  std::shared_ptr<FakeMachine> machine = std::make_shared<FakeMachine>();
  FakeRuntime runtime{machine};
  EventPool events{runtime, 1};
  HintCounters counters;
  MoveLanes lanes{runtime, events, counters, 0};

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
  EXPECT_TRUE(lanes.discard(7, {0, stream(2)}, 0));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 2",
                                                      "stream 2 waits for stream lane"}));
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 1u);
}

TEST_F(MoveLanesTest, NothingIsDiscardedForAStreamThatCannotBeOrdered) {
  machine->capturing = {stream(2)};
  lanes.begin({0, stream(1)}, 1);
  EXPECT_FALSE(lanes.discard(7, {0, stream(2)}, 0));
  machine->failures["discard"] = 1;
  EXPECT_FALSE(lanes.discard(7, {0, stream(1)}, 0));
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 0u);
  EXPECT_EQ(counters.of(HintKind::kDiscard).failed, 1u);
}

TEST_F(MoveLanesTest, ArrivalsThatAreHeldWaitForTheStreamUntilTheNextKernel) {
  lanes.begin({0, stream(1)}, 1);
  lanes.hold_arrivals();
  lanes.to_device(7, Arrival::kCopied);
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1"}));
  lanes.begin({0, stream(1)}, 1);
  machine->waits.clear();
  for (std::uintptr_t page = 8; page < 8 + MoveLanes::kLanesEachWay; ++page)
    lanes.to_device(page, Arrival::kCopied);
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
    MoveLanes own(runtime, events, counters, 0);
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
    MoveLanes own(runtime, events, counters, 0);
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
  EXPECT_TRUE(lanes.discard(7, {0, stream(1)}, 1));
  EXPECT_EQ(machine->records, recorded + 2) << "for the chunk and for the stream, none before it";
  EXPECT_TRUE(lanes.discard(8, {0, stream(1)}, 0));
  EXPECT_EQ(machine->records, recorded + 5);
}

TEST_F(MoveLanesTest, PagesThatMoveWithoutACopyHaveLanesOfTheirOwn) {
  lanes.begin({0, stream(1)}, 1);
  for (std::uintptr_t page = 0; page < MoveLanes::kLanesEachWay; ++page)
    lanes.to_device(page, Arrival::kCopied);
  EXPECT_EQ(machine->streams, static_cast<int>(MoveLanes::kLanesEachWay));
  lanes.to_device(20, Arrival::kNew);
  EXPECT_EQ(machine->streams, static_cast<int>(MoveLanes::kLanesEachWay) + 1);
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
  EXPECT_LE(machine->events.size(), MoveLanes::kMostEvictions + KernelEvents::kMost + 8);
}

TEST_F(MoveLanesTest, AForkedChildDestroysNothingOfItsParent) {
  {
    MoveLanes inherited(runtime, events, counters, 0);
    inherited.begin({0, stream(1)}, 1);
    inherited.leave(7, Place::host(), 1);
    ASSERT_EQ(machine->streams, 1);
    inherited.abandon();
  }
  EXPECT_EQ(machine->streams, 1);
  // In this test, the parent's events belong to this process.
  while (!machine->events.empty()) (void)runtime.destroy_event(0, *machine->events.begin());
}

}  // namespace
}  // namespace uvm::live
