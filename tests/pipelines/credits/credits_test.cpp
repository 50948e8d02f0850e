#include "pipelines/credits/credits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/message_of.hpp"
#include "tests/support/sanitized.hpp"

namespace uvm {
namespace {

using testing::message_of;

using std::chrono::seconds;
constexpr Credits::Time kNow{0};

// source -> a register -> sink
struct Pair {
  explicit Pair(std::size_t quota, std::size_t memory_bytes = Credits::kUnlimited)
      : credits(memory_bytes) {
    source = credits.add_actor("source");
    sink = credits.add_actor("sink");
    reg = credits.add_register({"made", source, {sink}, quota, 10});
  }
  CreditAction run(std::size_t actor) {
    CreditAction action = credits.start(actor, kNow);
    credits.finish(actor, kNow);
    return action;
  }
  Credits credits;
  std::size_t source = 0, sink = 0, reg = 0;
};

TEST(Credits, CountersFollowTheProtocolMessageByMessage) {
  Pair pair(2);
  Credits& credits = pair.credits;
  EXPECT_EQ(credits.out_counter(pair.reg), 2u);
  EXPECT_EQ(credits.in_counter(pair.reg, pair.sink), 0u);
  const CreditSlot slot = credits.start(pair.source, kNow).outputs.at(0);
  EXPECT_EQ(credits.out_counter(pair.reg), 1u);
  credits.finish(pair.source, kNow);
  EXPECT_EQ(credits.reference_counter(slot), 1u) << "counted when the request is sent";
  EXPECT_EQ(credits.in_counter(pair.reg, pair.sink), 0u) << "the request has not arrived";
  EXPECT_TRUE(credits.deliver(kNow));
  EXPECT_EQ(credits.in_counter(pair.reg, pair.sink), 1u);
  EXPECT_EQ(credits.start(pair.sink, kNow).inputs.at(0), slot)
      << "the producer's own slot: no copy";
  EXPECT_EQ(credits.in_counter(pair.reg, pair.sink), 0u);
  EXPECT_EQ(credits.reference_counter(slot), 1u) << "still read";
  credits.finish(pair.sink, kNow);
  EXPECT_EQ(credits.reference_counter(slot), 1u) << "the acknowledgement has not arrived";
  EXPECT_TRUE(credits.deliver(kNow));
  EXPECT_EQ(credits.reference_counter(slot), 0u);
  EXPECT_EQ(credits.out_counter(pair.reg), 2u);
  EXPECT_FALSE(credits.deliver(kNow));
}

TEST(Credits, AFastProducerStopsAtItsQuota) {
  Pair pair(3);
  int made = 0;
  for (; pair.credits.can_start(pair.source); ++made) pair.run(pair.source);
  pair.credits.deliver_all(kNow);
  EXPECT_EQ(made, 3);
  EXPECT_FALSE(pair.credits.can_start(pair.source)) << "back-pressure";
  pair.run(pair.sink);
  EXPECT_FALSE(pair.credits.can_start(pair.source)) << "not before the acknowledgement";
  pair.credits.deliver_all(kNow);
  EXPECT_TRUE(pair.credits.can_start(pair.source));
}

TEST(Credits, WithAQuotaOfTwoProducerAndConsumerActAtTheSameTime) {
  Pair pair(2);
  pair.run(pair.source);
  pair.credits.deliver_all(kNow);
  const CreditAction reads = pair.credits.start(pair.sink, kNow);
  const CreditAction writes = pair.credits.start(pair.source, kNow);
  EXPECT_NE(reads.inputs.at(0), writes.outputs.at(0));
}

TEST(Credits, ASlotIsFreeWhenItsLastConsumerHasAcknowledged) {
  Credits credits;
  const std::size_t source = credits.add_actor("source");
  const std::size_t left = credits.add_actor("left");
  const std::size_t right = credits.add_actor("right");
  const std::size_t reg = credits.add_register({"shared", source, {left, right}, 1, 8});
  const CreditSlot slot = credits.start(source, kNow).outputs.at(0);
  credits.finish(source, kNow);
  credits.deliver_all(kNow);
  EXPECT_EQ(credits.reference_counter(slot), 2u);
  for (const std::size_t consumer : {right, left}) {
    EXPECT_FALSE(credits.can_start(source));
    credits.start(consumer, kNow);
    credits.finish(consumer, kNow);
    credits.deliver_all(kNow);
  }
  EXPECT_EQ(credits.reference_counter(slot), 0u);
  EXPECT_EQ(credits.out_counter(reg), 1u);
}

// The notes, 4.3, figure 6: a register of three slots, then a register of two.
TEST(Credits, APipelineFillsAsInTheNotes) {
  Credits credits;
  const std::size_t first = credits.add_actor("actor1");
  const std::size_t second = credits.add_actor("actor2");
  const std::size_t third = credits.add_actor("actor3");
  credits.add_register({"r1", first, {second}, 3, 1});
  credits.add_register({"r2", second, {third}, 2, 1});
  std::vector<std::vector<std::size_t>> acting;
  for (int time = 0; time < 3; ++time) {
    acting.emplace_back();
    for (const std::size_t actor : {first, second, third}) {
      if (!credits.can_start(actor)) continue;
      credits.start(actor, kNow);
      acting.back().push_back(actor);
    }
    for (const std::size_t actor : acting.back()) credits.finish(actor, kNow);
    credits.deliver_all(kNow);
  }
  const std::vector<std::vector<std::size_t>> wanted{
      {first}, {first, second}, {first, second, third}};
  EXPECT_EQ(acting, wanted);
}

// The notes, 2.3, figure 2: M1 and M2 move inputs of O1 and O2; O1 needs more memory than O2.
struct TwoOperators {
  static constexpr std::size_t kMemory = 10, kInput = 3, kLarge = 6, kSmall = 3;
  TwoOperators() {
    for (const char* name : {"M1", "M2", "O1", "O2"}) credits.add_actor(name);
    credits.add_register({"m1", 0, {2}, 2, kInput});
    credits.add_register({"m2", 1, {3}, 2, kInput});
    credits.add_register({"memory of O1", 2, {}, 1, kLarge});
    credits.add_register({"memory of O2", 3, {}, 1, kSmall});
    credits.check_memory();
  }
  Credits credits{kMemory};
};

TEST(Credits, TheDeadlockOfTwoOperatorsHappensWithoutCredits) {
  // Models a scheduler that looks at inputs only, and allocates when an operator runs.
  std::size_t free_bytes = TwoOperators::kMemory;
  free_bytes -= 3 * TwoOperators::kInput;  // M1, M2, and M1 for the next piece: inputs are ready
  EXPECT_LT(free_bytes, TwoOperators::kLarge) << "O1 is ready and waits for memory";
  EXPECT_LT(free_bytes, TwoOperators::kSmall) << "so does O2: nobody gives memory back";
}

TEST(Credits, TheDeadlockOfTwoOperatorsFinishesWithCredits) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    TwoOperators two;
    std::vector<int> rounds(4);
    std::vector<bool> running(4);
    constexpr int kRounds = 20;
    while (rounds[2] < kRounds || rounds[3] < kRounds) {
      std::vector<std::size_t> possible;
      for (std::size_t actor = 0; actor < 4; ++actor) {
        if (running[actor] || (rounds[actor] < kRounds && two.credits.can_start(actor))) {
          possible.push_back(actor);
        }
      }
      ASSERT_FALSE(possible.empty()) << "deadlock with seed " << seed;
      const std::size_t actor = possible[random() % possible.size()];
      if (running[actor]) {
        two.credits.finish(actor, kNow);
        two.credits.deliver_all(kNow);
        ++rounds[actor];
      } else {
        two.credits.start(actor, kNow);
        if (actor < 2 && rounds[actor] + 1 == kRounds) two.credits.close(actor, kNow);
      }
      running[actor] = !running[actor];
      ASSERT_LE(two.credits.held_bytes(), TwoOperators::kMemory);
    }
    EXPECT_EQ(rounds, (std::vector<int>{kRounds, kRounds, kRounds, kRounds}));
    EXPECT_EQ(two.credits.held_bytes(), 0u);
  }
}

TEST(Credits, AnActionThatCouldEndInTheDeadlockDoesNotStart) {
  TwoOperators two;
  for (const std::size_t mover : {0, 1}) {
    two.credits.start(mover, kNow);
    two.credits.finish(mover, kNow);
  }
  two.credits.deliver_all(kNow);
  EXPECT_EQ(two.credits.held_bytes(), 6u);
  EXPECT_FALSE(two.credits.can_start(0)) << "9 of 10 bytes held: neither operator could ever start";
  EXPECT_FALSE(two.credits.can_start(2)) << "O1 does not fit yet";
  EXPECT_TRUE(two.credits.can_start(3));
}

TEST(Credits, MemoryThatHoldsNoRoundIsAnErrorThatNamesTheActor) {
  Credits credits(12);
  const std::size_t load = credits.add_actor("load");
  const std::size_t compute = credits.add_actor("compute");
  credits.add_register({"loaded", load, {compute}, 4, 8});
  credits.add_register({"result", compute, {}, 1, 5});
  EXPECT_EQ(
      message_of([&] { credits.check_memory(); }),
      "a memory quota of 12 bytes is too small for even one tensor to pass through all actors: "
      "'compute' needs 13 bytes");
}

// Each waiting thread queries the state at each change, under the lock of the gate.
TEST(Credits, NoQuestionCopiesTheState) {
  static_assert(!std::is_copy_constructible_v<Credits> && !std::is_copy_assignable_v<Credits>);
}

TEST(Credits, ATensorOnItsWayToOneConsumerIsCountedOnce) {
  Credits credits(4);
  const std::size_t source = credits.add_actor("source");
  const std::size_t fast = credits.add_actor("fast");
  const std::size_t slow = credits.add_actor("slow");
  const std::size_t made = credits.add_register({"made", source, {fast, slow}, 3, 1});
  credits.add_register({"memory", slow, {}, 1, 3});
  credits.check_memory();
  credits.start(source, kNow);
  credits.set_output_bytes(made, 0);
  credits.finish(source, kNow);
  credits.deliver_all(kNow);
  credits.start(fast, kNow);
  credits.finish(fast, kNow);
  credits.start(source, kNow);
  credits.finish(source, kNow);
  while (credits.in_counter(made, fast) == 0) credits.deliver(kNow);
  EXPECT_EQ(credits.in_counter(made, slow), 1u) << "the request for the second one is on its way";
  EXPECT_EQ(credits.held_bytes(), 1u);
  EXPECT_TRUE(credits.can_start(fast)) << "then 'slow' has its 3 bytes beside that one";
}

TEST(Credits, WrongRegistersAreNamed) {
  Pair pair(1);
  Credits& credits = pair.credits;
  EXPECT_EQ(message_of([&] {
              credits.add_register({"back", pair.sink, {pair.source}, 1, 1});
            }),
            "register 'back' closes a circle of actors: sink -> source -> sink");
  EXPECT_EQ(message_of([&] {
              credits.add_register({"none", pair.source, {}, 0, 1});
            }),
            "register 'none' has a quota of 0; accepted: at least 1");
  EXPECT_EQ(message_of([&] {
              credits.add_register({"far", 7, {}, 1, 1});
            }),
            "actor 7 does not exist; there are 2");
  EXPECT_EQ(message_of([&] {
              credits.add_register({"twice", 0, {1, 1}, 1, 1});
            }),
            "register 'twice' names the consumer 'sink' twice");
  EXPECT_EQ(message_of([&] { credits.in_counter(pair.reg, pair.source); }),
            "actor 0 does not read register 'made'");
  EXPECT_EQ(message_of([&] { credits.start(pair.sink, kNow); }), "'sink' cannot start");
  EXPECT_EQ(message_of([&] { credits.finish(pair.sink, kNow); }),
            "'sink' finishes an action and runs none");
}

TEST(Credits, AnOutputLargerThanItsSlotIsAnErrorAndASmallerOneGivesTheRestBack) {
  Pair pair(2, 25);
  pair.credits.start(pair.source, kNow);
  EXPECT_EQ(pair.credits.held_bytes(), 10u);
  EXPECT_EQ(message_of([&] { pair.credits.set_output_bytes(pair.reg, 11); }),
            "'source' made 11 bytes for register 'made'; its slots hold 10");
  EXPECT_EQ(pair.credits.held_bytes(), 10u);
  pair.credits.set_output_bytes(pair.reg, 4);
  EXPECT_EQ(pair.credits.held_bytes(), 4u);
  EXPECT_EQ(pair.credits.peak_bytes(), 10u);
}

TEST(Credits, TheEndOfTheSourceReachesTheSinkAfterTheLastTensor) {
  Pair pair(2);
  pair.run(pair.source);
  pair.credits.close(pair.source, kNow);
  EXPECT_TRUE(pair.credits.is_over(pair.source));
  EXPECT_FALSE(pair.credits.is_over(pair.sink)) << "a request is on its way";
  pair.credits.deliver_all(kNow);
  EXPECT_FALSE(pair.credits.is_over(pair.sink)) << "a tensor waits";
  pair.run(pair.sink);
  EXPECT_TRUE(pair.credits.is_over(pair.sink));
}

TEST(Credits, AnAbandonedActionLeavesNoTensorAndNoSlotTaken) {
  Pair pair(2);
  pair.run(pair.source);
  pair.credits.start(pair.source, kNow);
  pair.credits.abandon(pair.source, kNow);
  pair.credits.deliver_all(kNow);
  EXPECT_TRUE(pair.credits.is_over(pair.source));
  EXPECT_EQ(pair.credits.out_counter(pair.reg), 1u) << "the first tensor is still to be read";
  pair.credits.start(pair.sink, kNow);
  pair.credits.abandon(pair.sink, kNow);
  pair.credits.deliver_all(kNow);
  EXPECT_EQ(pair.credits.out_counter(pair.reg), 2u);
  EXPECT_EQ(pair.credits.held_bytes(), 0u);
}

TEST(Credits, ASinkThatEndsEarlyEndsTheSourceAndFreesWhatWaits) {
  Pair pair(3);
  pair.run(pair.source);
  pair.run(pair.source);
  pair.credits.deliver(kNow);
  pair.credits.close(pair.sink, kNow);
  pair.credits.deliver_all(kNow);
  EXPECT_TRUE(pair.credits.is_over(pair.source));
  EXPECT_EQ(pair.credits.out_counter(pair.reg), 3u);
  EXPECT_EQ(pair.credits.held_bytes(), 0u);
}

TEST(Credits, AnActorWithTwoInputsEndsWithTheShorterOne) {
  Credits credits;
  const std::size_t left = credits.add_actor("left");
  const std::size_t right = credits.add_actor("right");
  const std::size_t join = credits.add_actor("join");
  const std::size_t of_left = credits.add_register({"l", left, {join}, 2, 1});
  const std::size_t of_right = credits.add_register({"r", right, {join}, 2, 1});
  for (int time = 0; time < 2; ++time) {
    credits.start(left, kNow);
    credits.finish(left, kNow);
  }
  credits.start(right, kNow);
  credits.finish(right, kNow);
  credits.close(right, kNow);
  credits.deliver_all(kNow);
  credits.start(join, kNow);
  credits.finish(join, kNow);
  credits.deliver_all(kNow);
  EXPECT_TRUE(credits.is_over(join));
  EXPECT_TRUE(credits.is_over(left)) << "nobody reads it any more";
  EXPECT_EQ(credits.out_counter(of_left), 2u);
  EXPECT_EQ(credits.out_counter(of_right), 2u);
}

TEST(Credits, AConsumerThatNeverAcknowledgesIsNamed) {
  Pair pair(2);
  pair.credits.start(pair.source, seconds(1));
  pair.credits.finish(pair.source, seconds(1));
  pair.credits.deliver_all(seconds(2));
  EXPECT_EQ(pair.credits.next_overdue(seconds(5)), seconds(7));
  EXPECT_EQ(pair.credits.overdue(seconds(7), seconds(5)), std::nullopt);
  EXPECT_EQ(pair.credits.overdue(seconds(8), seconds(5)),
            "'sink' has not acknowledged slot 0 of register 'made' for 6.000 s");
  pair.credits.start(pair.sink, seconds(9));
  EXPECT_EQ(pair.credits.overdue(seconds(13), seconds(5)), std::nullopt);
  EXPECT_EQ(pair.credits.overdue(seconds(15), seconds(5)),
            "'sink' has not acknowledged slot 0 of register 'made' for 6.000 s");
  pair.credits.finish(pair.sink, seconds(15));
  EXPECT_EQ(pair.credits.next_overdue(seconds(5)), std::nullopt);
}

TEST(Credits, ASourceThatMakesItsTensorForTooLongIsNamed) {
  Pair pair(2);
  EXPECT_EQ(pair.credits.next_overdue(seconds(5)), std::nullopt) << "it has not started";
  pair.credits.start(pair.source, seconds(1));
  EXPECT_EQ(pair.credits.next_overdue(seconds(5)), seconds(6));
  EXPECT_EQ(pair.credits.overdue(seconds(6), seconds(5)), std::nullopt);
  EXPECT_EQ(pair.credits.overdue(seconds(7), seconds(5)),
            "'source' has not made a tensor for register 'made' for 6.000 s");
}

TEST(Credits, AConsumerThatWaitsForCreditsOfItsOwnIsNotLate) {
  Credits credits;
  const std::size_t source = credits.add_actor("source");
  const std::size_t middle = credits.add_actor("middle");
  const std::size_t slow = credits.add_actor("slow");
  credits.add_register({"a", source, {middle}, 2, 1});
  credits.add_register({"b", middle, {slow}, 1, 1});
  for (const std::size_t actor : {source, middle, source}) {
    credits.start(actor, kNow);
    credits.finish(actor, kNow);
    credits.deliver_all(kNow);
  }
  EXPECT_EQ(credits.overdue(seconds(9), seconds(5)),
            "'slow' has not acknowledged slot 0 of register 'b' for 9.000 s");
}

// Random graphs of up to six actors, run in a random order, with messages that arrive late. A model
// keeps the contents of every slot. No actor may write to a slot that is being read, and every
// consumer reads each tensor once and in order.
TEST(Credits, RandomGraphsNeverDeadlockNorOverwriteATensorThatIsRead) {
  int bounded_graphs = 0;
  const auto seeds = static_cast<unsigned>(testing::steps(100, 30));
  for (unsigned seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(seed);
    const std::size_t actors = 2 + random() % 5;
    std::size_t all_bytes = 0;
    struct Made {
      std::size_t producer;
      std::vector<std::size_t> consumers;
      std::size_t quota, slot_bytes;
    };
    std::vector<Made> made;
    for (std::size_t producer = 0; producer + 1 < actors; ++producer) {
      for (std::size_t count = 1 + random() % 2; count-- > 0;) {
        Made reg{producer, {}, 1 + random() % 3, 1 + random() % 8};
        for (std::size_t consumer = producer + 1; consumer < actors; ++consumer) {
          if (random() % 2 == 0) reg.consumers.push_back(consumer);
        }
        all_bytes += reg.quota * reg.slot_bytes;
        made.push_back(reg);
      }
    }
    auto build = [&](std::size_t memory_bytes) {
      Credits credits(memory_bytes);
      for (std::size_t actor = 0; actor < actors; ++actor)
        credits.add_actor("a" + std::to_string(actor));
      for (const Made& reg : made)
        credits.add_register({"r", reg.producer, reg.consumers, reg.quota, reg.slot_bytes});
      return credits;
    };
    std::size_t memory_bytes = Credits::kUnlimited;
    if (seed % 3 != 0) {  // the least memory for a round, or a little more
      std::size_t too_little = 0;
      memory_bytes = all_bytes;
      while (memory_bytes - too_little > 1) {
        const std::size_t middle = too_little + (memory_bytes - too_little) / 2;
        const bool is_enough =
            message_of([&] { build(middle).check_memory(); }) == "nothing was thrown";
        (is_enough ? memory_bytes : too_little) = middle;
      }
      memory_bytes += random() % 4;
      bounded_graphs += memory_bytes < all_bytes;
    }
    Credits credits = build(memory_bytes);
    const int rounds = 12;
    std::vector<int> done(actors);
    std::vector<std::optional<CreditAction>> running(actors);
    std::map<std::pair<std::size_t, std::size_t>, int> contents;  // the round that wrote the slot
    while (std::any_of(done.begin(), done.end(), [&](int count) { return count < rounds; })) {
      std::vector<std::size_t> possible;
      for (std::size_t actor = 0; actor < actors; ++actor) {
        if (running[actor] || (done[actor] < rounds && credits.can_start(actor)))
          possible.push_back(actor);
      }
      const std::size_t choice = random() % (possible.size() + 1);
      if (choice == possible.size()) {
        ASSERT_TRUE(credits.deliver(kNow) || !possible.empty()) << "deadlock with seed " << seed;
        continue;
      }
      const std::size_t actor = possible[choice];
      if (!running[actor]) {
        running[actor] = credits.start(actor, kNow);
        for (const CreditSlot& slot : running[actor]->outputs) {
          ASSERT_EQ(credits.reference_counter(slot), 0u);
          contents[{slot.reg, slot.index}] = done[actor];
        }
      } else {
        for (const CreditSlot& slot : running[actor]->inputs)
          ASSERT_EQ((contents[{slot.reg, slot.index}]), done[actor]) << "seed " << seed;
        credits.finish(actor, kNow);
        running[actor].reset();
        ++done[actor];
      }
      ASSERT_LE(credits.held_bytes(), memory_bytes);
    }
    credits.deliver_all(kNow);
    EXPECT_EQ(credits.held_bytes(), 0u) << "seed " << seed;
    for (std::size_t reg = 0; reg < made.size(); ++reg)
      EXPECT_EQ(credits.out_counter(reg), made[reg].quota);
  }
  EXPECT_GT(bounded_graphs, static_cast<int>(seeds) / 2);
}

}  // namespace
}  // namespace uvm
