#include <uvmalloc/hints/hint_sender.hpp>

#include <gtest/gtest.h>

#include "support/fake_runtime.hpp"

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

TEST_F(HintSenderTest, EventsAreUsedAgain) {
  for (int round = 0; round < 10; ++round)
    sender.send({prefetch}, 0, {0, stream(1)}, {0, stream(2)});
  EXPECT_LE(machine->events.size(), 2u);
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

}  // namespace
}  // namespace uvm
