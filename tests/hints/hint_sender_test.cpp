#include "hints/hint_sender.hpp"

#include <gtest/gtest.h>

#include <future>

#include "tests/support/fake_runtime.hpp"

namespace uvm {
namespace {

using testing::FakeMachine;
using testing::FakeRuntime;
using testing::stream;

struct HintSenderTest : ::testing::Test {
  std::shared_ptr<FakeMachine> machine = std::make_shared<FakeMachine>();
  FakeRuntime runtime{machine};
  EventPool events{runtime, 1};
  HintCounters counters;
  HintSender sender{runtime, events, counters};
  Hint prefetch{HintKind::kPrefetch, {}, Place::device(0), nullptr, kPageBytes};
  Hint advise{HintKind::kAdvise, Advice::kSetAccessedBy, Place::device(0), nullptr, kPageBytes};
};

TEST_F(HintSenderTest, TheLaneWaitsForTheProducerAndTheConsumerForTheLane) {
  sender.send({advise, prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_EQ(machine->hints, (std::vector<Hint>{advise, prefetch}));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1",
                                                      "stream 2 waits for stream lane"}));
}

TEST_F(HintSenderTest, AdviceAloneMakesNobodyWait) {
  sender.send({advise}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_TRUE(machine->waits.empty());
}

TEST_F(HintSenderTest, AFailedHintIsCountedAndNobodyWaitsForIt) {
  machine->failures["prefetch"] = 1;
  sender.send({prefetch}, 0, {}, {0, stream(2)});
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 1u);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 0u);
  EXPECT_TRUE(machine->waits.empty());
  sender.send({prefetch}, 0, {}, {0, stream(2)});
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 1u);
}

TEST_F(HintSenderTest, WithoutALaneAdviceIsSentAndPrefetchesFail) {
  machine->failures["create_stream"] = 2;
  const HintStatuses statuses =
      sender.send({prefetch, advise, prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_TRUE(statuses[1].ok());
  EXPECT_FALSE(statuses[2].ok());
  EXPECT_EQ(statuses[2].call, "create_stream");
  EXPECT_EQ(machine->hints, (std::vector<Hint>{advise}));
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 2u);
  EXPECT_EQ(counters.of(HintKind::kAdvise).sent, 1u);
  EXPECT_TRUE(machine->waits.empty());
  sender.send({prefetch}, 0);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 1u) << "the lane is tried again";
}

TEST_F(HintSenderTest, AnEventThatCannotBeRecordedMakesNobodyWait) {
  machine->failures["record_event"] = 2;
  sender.send({prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_EQ(machine->hints, (std::vector<Hint>{prefetch}));
  EXPECT_TRUE(machine->waits.empty());
}

TEST_F(HintSenderTest, AnEventThatCannotBeMadeMakesNobodyWaitAndIsTriedAgain) {
  machine->failures["create_event"] = 2;
  sender.send({prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_EQ(machine->hints, (std::vector<Hint>{prefetch}));
  EXPECT_TRUE(machine->waits.empty());
  sender.send({prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_EQ(machine->waits.size(), 2u);
}

TEST_F(HintSenderTest, ACapturedStreamIsLeftOutOfTheOrder) {
  machine->capturing = {stream(1)};
  sender.send({prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_EQ(machine->hints, (std::vector<Hint>{prefetch}));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream 2 waits for stream lane"}));
}

TEST_F(HintSenderTest, ADiscardThatFailsIsCountedAndNobodyWaits) {
  machine->failures["create_stream"] = 1;
  EXPECT_EQ(sender.discard(0, nullptr, kPageBytes).call, "create_stream");
  machine->failures["discard"] = 1;
  EXPECT_EQ(sender.discard(0, nullptr, kPageBytes).call, "discard");
  EXPECT_TRUE(machine->waits.empty());
  EXPECT_EQ(counters.of(HintKind::kDiscard).failed, 2u);
  EXPECT_TRUE(sender.discard(0, nullptr, kPageBytes).ok());
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"host waits for stream lane"}));
  EXPECT_EQ(counters.of(HintKind::kDiscard).sent, 1u);
  EXPECT_EQ(counters.of(HintKind::kDiscard).bytes, kPageBytes);
}

TEST_F(HintSenderTest, AForkedChildCallsNothingForWhatItsParentHas) {
  machine->failures["advice_in_capture"] = 1;
  {
    EventPool inherited_events(runtime, 1);
    HintSender inherited(runtime, inherited_events, counters);
    inherited.send({prefetch}, 0, {0, stream(1)});
    inherited.send({advise}, 0);  // waits for the end of the capture
    ASSERT_EQ(machine->streams, 1);
    ASSERT_EQ(machine->events.size(), 1u);
    inherited.abandon();
    inherited_events.abandon();
  }
  EXPECT_EQ(machine->streams, 1) << "the lane is the parent's";
  ASSERT_EQ(machine->events.size(), 1u) << "so is the event";
  EXPECT_EQ(machine->hints, (std::vector<Hint>{prefetch})) << "and the advice that waits";
  runtime.destroy_event(0, *machine->events.begin());
}

TEST_F(HintSenderTest, EventsAreUsedAgain) {
  for (int round = 0; round < 10; ++round)
    sender.send({prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_LE(machine->events.size(), 2u);
}

// ---- large copies

struct HintSenderPiecesTest : HintSenderTest {
  static constexpr std::size_t kPages = 100;
  Hint copy{HintKind::kPrefetch, {}, Place::device(0), nullptr, kPages* kPageBytes, true};

  Hint piece(std::size_t first_page, std::size_t pages) {
    return {HintKind::kPrefetch,
            {},
            Place::device(0),
            reinterpret_cast<void*>(first_page * kPageBytes),
            pages * kPageBytes};
  }
};

TEST_F(HintSenderPiecesTest, PiecesOfALargeCopyDoubleAndCoverIt) {
  sender.send({copy}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_EQ(machine->hints,
            (std::vector<Hint>{piece(0, 1), piece(1, 2), piece(3, 4), piece(7, 8), piece(15, 16),
                               piece(31, 32), piece(63, 32), piece(95, 5)}));
  EXPECT_EQ(machine->waits,
            (std::vector<std::string>{
                "stream lane waits for stream 1", "stream lane waits for stream lane",
                "stream lane waits for stream lane", "stream 2 waits for stream lane"}));
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 8u);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).bytes, kPages * kPageBytes);
  EXPECT_EQ(machine->streams, 2);
}

TEST_F(HintSenderPiecesTest, PagesWithoutContentsAndSmallCopiesAreOnePrefetch) {
  Hint fresh = copy;
  fresh.is_copied = false;
  sender.send({fresh}, 0);
  Hint small = copy;
  small.size_bytes = policy::kLeastSplitBytes - kPageBytes;
  sender.send({small}, 0);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 2u);
  EXPECT_EQ(machine->streams, 1);
}

TEST_F(HintSenderPiecesTest, WithoutASecondLaneAllPiecesAreSent) {
  ASSERT_NE(sender.lane(0), nullptr);
  machine->failures["create_stream"] = 1;
  EXPECT_TRUE(sender.send({copy}, 0)[0].ok());
  EXPECT_EQ(counters.of(HintKind::kPrefetch).bytes, kPages * kPageBytes);
  EXPECT_TRUE(machine->waits.empty());
}

TEST_F(HintSenderPiecesTest, APieceThatFailsEndsTheCopy) {
  machine->failures["prefetch"] = 1;
  EXPECT_FALSE(sender.send({copy}, 0)[0].ok());
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 1u);
  EXPECT_TRUE(machine->hints.empty());
}

TEST_F(HintSenderPiecesTest, WhereTheLanesCannotBeOrderedTheHostWaitsForTheSecond) {
  ASSERT_NE(sender.lane(0), nullptr);
  machine->before_prefetch = [&] { machine->failures["record_event"] = 1; };
  EXPECT_TRUE(sender.send({copy}, 0)[0].ok());
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream lane",
                                                      "host waits for stream lane"}));
}

TEST_F(HintSenderTest, WhoIsSecondToMakeALaneHoldsNoLockWhileItsOwnIsDestroyed) {
  StreamHandle first = nullptr;
  StreamHandle meanwhile = nullptr;
  machine->before_create_stream = [&] { first = sender.lane(0); };
  machine->before_destroy_stream = [&] { meanwhile = sender.lane(0); };
  EXPECT_EQ(sender.lane(0), first);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(meanwhile, first);
  EXPECT_EQ(machine->streams, 1);
}

// ---- advice beside a capture

TEST_F(HintSenderTest, AdviceThatACaptureForbidsIsSentWithTheFirstHintsAfterIt) {
  machine->failures["advice_in_capture"] = 1;
  EXPECT_TRUE(sender.send({advise}, 0)[0].ok());
  EXPECT_TRUE(machine->hints.empty());
  EXPECT_EQ(counters.of(HintKind::kAdvise).sent, 0u);
  EXPECT_EQ(counters.of(HintKind::kAdvise).failed, 0u);
  sender.send({prefetch}, 0);
  EXPECT_EQ(machine->hints, (std::vector<Hint>{advise, prefetch}));
  EXPECT_EQ(counters.of(HintKind::kAdvise).sent, 1u);
}

TEST_F(HintSenderTest, LaterAdviceDoesNotOvertakeAdviceThatWaits) {
  Hint later = advise;
  later.place = Place::host();
  machine->failures["advice_in_capture"] = 2;  // the first attempt and the second
  sender.send({advise}, 0);
  sender.send({later}, 0);
  EXPECT_TRUE(machine->hints.empty());
  sender.send({}, 0);
  EXPECT_EQ(machine->hints, (std::vector<Hint>{advise, later}));
}

TEST_F(HintSenderTest, AdviceAboutMemoryThatIsGoneAfterTheCaptureIsNoFailure) {
  machine->failures["advice_in_capture"] = 1;
  sender.send({advise}, 0);
  machine->failures["advice_on_nothing"] = 1;
  sender.send({}, 0);
  EXPECT_EQ(counters.of(HintKind::kAdvise).sent, 0u);
  EXPECT_EQ(counters.of(HintKind::kAdvise).failed, 0u);
  sender.send({}, 0);
  EXPECT_TRUE(machine->hints.empty()) << "it was tried for good";
}

TEST_F(HintSenderTest, MoreAdviceThanCanWaitFails) {
  machine->failures["advice_in_capture"] = 1000000;
  for (std::size_t sent = 0; sent < policy::kMostWaitingAdvice; ++sent)
    ASSERT_TRUE(sender.send({advise}, 0)[0].ok());
  EXPECT_EQ(sender.send({advise}, 0)[0].error, RuntimeError::kCapture);
  EXPECT_EQ(counters.of(HintKind::kAdvise).failed, 1u);
}

// ---- prefetches that block

struct BlockingPrefetchTest : HintSenderTest {
  HintSender blocking{runtime, events, counters, /*prefetch_blocks=*/true};
};

TEST_F(BlockingPrefetchTest, TheCallerDoesNotWaitForAPrefetch) {
  std::promise<void> may_end;
  machine->before_prefetch = [ended = may_end.get_future().share()] { ended.wait(); };
  EXPECT_TRUE(blocking.send({prefetch}, 0, {0, stream(1)}, {0, stream(2)})[0].ok());
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 0u) << "it has not begun";
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1"}));
  may_end.set_value();
  blocking.discard(0, nullptr, kPageBytes);  // waits for earlier prefetches
  EXPECT_EQ(machine->hints, (std::vector<Hint>{prefetch}));
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 1u);
}

TEST_F(BlockingPrefetchTest, PrefetchesKeepTheirOrder) {
  std::vector<Hint> expected;
  for (std::size_t page = 0; page < 100; ++page) {
    Hint hint = prefetch;
    hint.size_bytes = (page + 1) * kPageBytes;
    expected.push_back(hint);
    ASSERT_TRUE(blocking.send({hint}, 0)[0].ok());
  }
  blocking.discard(0, nullptr, kPageBytes);
  EXPECT_EQ(machine->hints, expected);
}

TEST_F(BlockingPrefetchTest, AFailureIsCountedOnceItIsKnown) {
  machine->failures["prefetch"] = 1;
  EXPECT_TRUE(blocking.send({prefetch}, 0)[0].ok());
  blocking.discard(0, nullptr, kPageBytes);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 1u);
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 0u);
}

TEST_F(BlockingPrefetchTest, MoreThanCanWaitFail) {
  std::promise<void> may_end;
  machine->before_prefetch = [ended = may_end.get_future().share()] { ended.wait(); };
  for (std::size_t sent = 0; sent < policy::kMostWaitingPrefetches; ++sent)
    ASSERT_TRUE(blocking.send({prefetch}, 0)[0].ok());
  EXPECT_EQ(blocking.send({prefetch}, 0)[0].native_name, "too many wait");
  EXPECT_EQ(counters.of(HintKind::kPrefetch).failed, 1u);
  may_end.set_value();
}

TEST_F(BlockingPrefetchTest, PrefetchesThatWereHandedOverRunBeforeTheSenderEnds) {
  {
    HintSender short_lived(runtime, events, counters, /*prefetch_blocks=*/true);
    for (int sent = 0; sent < 10; ++sent) short_lived.send({prefetch}, 0);
  }
  EXPECT_EQ(counters.of(HintKind::kPrefetch).sent, 10u);
}

}  // namespace
}  // namespace uvm
