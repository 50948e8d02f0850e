#include "pipelines/credits/credit_gate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/waiting_thread.hpp"

namespace uvm {
namespace {

using std::chrono::seconds;
using testing::WaitingThread;

// A clock that stands still until a test advances it.
class FakeCreditClock final : public CreditClock {
 public:
  Time now() const override { return Time(now_.load()); }
  void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
            std::optional<Time> until) override {
    if (until && now() >= *until) return;
    mutex_ = lock.mutex();
    changed_ = &changed;
    changed.wait(lock);
  }
  // Call this only after a thread has waited.
  void advance(Time by) {
    std::lock_guard lock(*mutex_.load());
    now_ += by.count();
    changed_.load()->notify_all();
  }

 private:
  std::atomic<Time::rep> now_ = 0;
  std::atomic<std::mutex*> mutex_ = nullptr;
  std::atomic<std::condition_variable*> changed_ = nullptr;
};

Credits line(std::size_t actors, std::size_t quota, std::size_t slot_bytes = 1,
             std::size_t memory_bytes = Credits::kUnlimited) {
  Credits credits(memory_bytes);
  for (std::size_t actor = 0; actor < actors; ++actor)
    credits.add_actor("stage" + std::to_string(actor));
  for (std::size_t actor = 0; actor + 1 < actors; ++actor)
    credits.add_register({"out" + std::to_string(actor), actor, {actor + 1}, quota, slot_bytes});
  return credits;
}

TEST(CreditGate, AConsumerThatNeverAcknowledgesTimesOutByName) {
  FakeCreditClock clock;
  CreditGate gate(line(2, 1), clock, seconds(5));
  gate.start(0);
  gate.finish(0);
  gate.start(1);  // and never finishes
  std::string message;
  WaitingThread producer([&] {
    try {
      gate.start(0);
    } catch (const CreditTimeoutError& late) {
      message = late.what();
    }
  });
  ASSERT_TRUE(producer.waits()) << "no credit";
  clock.advance(seconds(5));
  ASSERT_TRUE(producer.waits()) << "in time";
  clock.advance(seconds(1));
  producer.join();
  EXPECT_EQ(message, "'stage1' has not acknowledged slot 0 of register 'out0' for 6.000 s");
  EXPECT_THROW(gate.start(0), CreditTimeoutError);
}

TEST(CreditGate, ABoundedWaitEndsWithoutAnAnswerAndThenWithEachKindOfAnswer) {
  FakeCreditClock clock;
  CreditGate gate(line(2, 1), clock, seconds(60));
  bool is_ready = true;
  {
    WaitingThread consumer([&] { is_ready = gate.wait(1, seconds(5)); });
    ASSERT_TRUE(consumer.waits());
    clock.advance(seconds(5));
    consumer.join();
  }
  EXPECT_FALSE(is_ready) << "nothing was made";
  EXPECT_TRUE(gate.wait(0, seconds(0)));
  gate.start(0);
  {
    WaitingThread consumer([&] { is_ready = gate.wait(1, seconds(5)); });
    ASSERT_TRUE(consumer.waits());
    gate.finish(0);
    consumer.join();
  }
  EXPECT_TRUE(is_ready) << "a tensor came";
  EXPECT_TRUE(gate.start(1).has_value()) << "the wait has not started the action";
  gate.finish(1);
  gate.start(0);
  {
    WaitingThread consumer([&] { is_ready = gate.wait(1, seconds(100)); });
    ASSERT_TRUE(consumer.waits());
    clock.advance(seconds(61));
    consumer.join();
  }
  EXPECT_TRUE(is_ready) << "the source is late";
  EXPECT_THROW(gate.start(1), CreditTimeoutError);
  gate.stop("the end");
  EXPECT_TRUE(gate.wait(0, seconds(0)));
}

TEST(CreditGate, StopWakesWhoWaitsWithItsReason) {
  FakeCreditClock clock;
  CreditGate gate(line(2, 1), clock, std::nullopt);
  std::string message;
  WaitingThread consumer([&] {
    try {
      gate.start(1);
    } catch (const CreditStoppedError& stopped) {
      message = stopped.what();
    }
  });
  ASSERT_TRUE(consumer.waits());
  gate.stop("the disk is gone");
  gate.stop("another reason");
  consumer.join();
  EXPECT_EQ(message, "the disk is gone");
}

TEST(CreditGate, TheEndOfTheSourceEndsAConsumerThatWaits) {
  FakeCreditClock clock;
  CreditGate gate(line(2, 1), clock, std::nullopt);
  bool is_over = false;
  WaitingThread consumer([&] { is_over = !gate.start(1).has_value(); });
  ASSERT_TRUE(consumer.waits());
  gate.close(0);
  consumer.join();
  EXPECT_TRUE(is_over);
}

TEST(CreditGate, MemoryThatHoldsNoTensorIsAnErrorBeforeAnythingStarts) {
  FakeCreditClock clock;
  EXPECT_THROW(CreditGate(line(2, 1, 8, 7), clock, std::nullopt), std::invalid_argument);
}

// Real threads, a quota of one to three slots, and a memory quota below the sum of the slots. Every
// tensor arrives once, in order and unchanged, although slots are written again and again.
TEST(CreditGate, ThreadsHandOverEveryTensorUnchangedUnderAMemoryQuota) {
  constexpr std::size_t kStages = 4, kTensors = 500, kWords = 64;
  for (std::size_t quota = 1; quota <= 3; ++quota) {
    SteadyCreditClock clock;
    const std::size_t slot_bytes = kWords * sizeof(std::size_t);
    const std::size_t memory_bytes = slot_bytes * (kStages + quota - 1);
    CreditGate gate(line(kStages, quota, slot_bytes, memory_bytes), clock, seconds(60));
    std::vector<std::vector<std::vector<std::size_t>>> slots(
        kStages, std::vector<std::vector<std::size_t>>(quota, std::vector<std::size_t>(kWords)));
    std::atomic<std::size_t> wrong{0};
    std::vector<std::size_t> received;
    auto stage = [&](std::size_t actor) {
      for (std::size_t number = 0;; ++number) {
        const auto action = gate.start(actor);
        if (!action) break;
        std::size_t value = number;
        if (actor > 0) {
          const auto& read = slots[actor - 1][action->inputs.at(0).index];
          value = read[0] + 1;
          if (std::any_of(read.begin(), read.end(),
                          [&](std::size_t word) { return word != read[0]; })) {
            ++wrong;
          }
          if (actor + 1 == kStages) received.push_back(value);
        }
        if (actor + 1 < kStages) {
          for (std::size_t& word : slots[actor][action->outputs.at(0).index]) word = value;
        }
        gate.finish(actor);
        if (actor == 0 && number + 1 == kTensors) gate.close(0);
      }
    };
    std::vector<std::thread> threads;
    for (std::size_t actor = 0; actor < kStages; ++actor) threads.emplace_back(stage, actor);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(received.size(), kTensors);
    for (std::size_t number = 0; number < kTensors; ++number)
      ASSERT_EQ(received[number], number + kStages - 1);
    EXPECT_EQ(wrong, 0u);
    EXPECT_LE(gate.peak_bytes(), memory_bytes);
    EXPECT_EQ(gate.held_bytes(), 0u);
  }
}

}  // namespace
}  // namespace uvm
