#include "pipelines/credits/credit_calls.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/waiting_thread.hpp"

namespace {

using uvm::testing::WaitingThread;

// A source and a sink with one register between them, through the C functions only.
struct CreditCallsTest : ::testing::Test {
  using Handle = std::unique_ptr<uvmalloc_credits, decltype(&uvmalloc_credits_destroy)>;

  explicit CreditCallsTest(std::uint64_t memory_bytes = UINT64_MAX)
      : credits(uvmalloc_credits_create(memory_bytes), &uvmalloc_credits_destroy) {
    source = actor("source");
    sink = actor("sink");
    reg = add_register("made", source, {sink}, 1, 10);
  }

  // Returns the error text that a call has written, or an empty string.
  std::string error() const { return text.data(); }

  int actor(const char* name) {
    return uvmalloc_credits_add_actor(credits.get(), name, text.data(), text.size());
  }
  int add_register(const char* name, int producer, const std::vector<int>& consumers,
                   std::uint64_t quota, std::uint64_t slot_bytes) {
    return uvmalloc_credits_add_register(credits.get(), name, producer, consumers.data(),
                                         consumers.size(), quota, slot_bytes, text.data(),
                                         text.size());
  }
  int open(double timeout_seconds = 0) {
    return uvmalloc_credits_open(credits.get(), timeout_seconds, text.data(), text.size());
  }
  int start(int number) {
    return uvmalloc_credits_start(credits.get(), number, inputs.data(), outputs.data(), text.data(),
                                  text.size());
  }
  int set_output_bytes(int number, std::uint64_t size_bytes) {
    return uvmalloc_credits_set_output_bytes(credits.get(), number, size_bytes, text.data(),
                                             text.size());
  }
  int finish(int number) {
    return uvmalloc_credits_finish(credits.get(), number, text.data(), text.size());
  }
  int close(int number) {
    return uvmalloc_credits_close(credits.get(), number, text.data(), text.size());
  }
  int abandon(int number) {
    return uvmalloc_credits_abandon(credits.get(), number, text.data(), text.size());
  }
  std::uint64_t held_bytes() const { return uvmalloc_credits_held_bytes(credits.get()); }
  std::uint64_t peak_bytes() const { return uvmalloc_credits_peak_bytes(credits.get()); }

  std::array<char, 256> text{};
  std::array<std::uint64_t, 2> inputs{UINT64_MAX, UINT64_MAX};
  std::array<std::uint64_t, 2> outputs{UINT64_MAX, UINT64_MAX};
  Handle credits;
  int source = -1, sink = -1, reg = -1;
};

TEST_F(CreditCallsTest, NumbersCountUpAndATensorPassesFromTheSourceToTheSink) {
  EXPECT_EQ(source, 0);
  EXPECT_EQ(sink, 1);
  EXPECT_EQ(reg, 0);
  ASSERT_EQ(open(), 0);
  ASSERT_EQ(start(source), UVMALLOC_CREDITS_STARTED);
  EXPECT_EQ(outputs[0], 0u);
  EXPECT_EQ(held_bytes(), 10u);
  EXPECT_EQ(set_output_bytes(reg, 4), 0);
  EXPECT_EQ(held_bytes(), 4u);
  EXPECT_EQ(finish(source), 0);
  ASSERT_EQ(start(sink), UVMALLOC_CREDITS_STARTED);
  EXPECT_EQ(inputs[0], 0u) << "the slot of the source";
  EXPECT_EQ(finish(sink), 0);
  EXPECT_EQ(held_bytes(), 0u);
  EXPECT_EQ(peak_bytes(), 10u);
  EXPECT_EQ(close(source), 0);
  EXPECT_EQ(start(source), UVMALLOC_CREDITS_OVER);
  EXPECT_EQ(start(sink), UVMALLOC_CREDITS_OVER);
  EXPECT_EQ(error(), "");
}

TEST_F(CreditCallsTest, ASlotIsNotGivenAgainBeforeItsConsumerFinishes) {
  ASSERT_EQ(open(), 0);
  ASSERT_EQ(start(source), UVMALLOC_CREDITS_STARTED);
  ASSERT_EQ(finish(source), 0);
  ASSERT_EQ(start(sink), UVMALLOC_CREDITS_STARTED);
  int status = UVMALLOC_CREDITS_FAILED;
  WaitingThread producer([&] {
    std::uint64_t slot = 0;
    status = uvmalloc_credits_start(credits.get(), source, nullptr, &slot, nullptr, 0);
  });
  EXPECT_TRUE(producer.waits());
  ASSERT_EQ(finish(sink), 0);
  producer.join();
  EXPECT_EQ(status, UVMALLOC_CREDITS_STARTED);
}

TEST_F(CreditCallsTest, WrongArgumentsAreNamed) {
  EXPECT_EQ(add_register("far", source, {7}, 1, 1), -1);
  EXPECT_EQ(error(), "actor 7 does not exist; there are 2");
  EXPECT_EQ(add_register("none", source, {sink}, 0, 1), -1);
  EXPECT_EQ(error(), "register 'none' has a quota of 0; accepted: at least 1");
  EXPECT_EQ(add_register("back", sink, {source}, 1, 1), -1);
  EXPECT_EQ(error(), "register 'back' closes a circle of actors: sink -> source -> sink");
  for (const int wrong :
       {add_register("of nobody", -1, {}, 1, 1), add_register("to nobody", source, {-1}, 1, 1)}) {
    EXPECT_EQ(wrong, -1);
    EXPECT_EQ(error(), "a number is negative");
  }
  ASSERT_EQ(open(), 0) << "registers that were refused are not there";
  EXPECT_EQ(start(-1), UVMALLOC_CREDITS_FAILED);
  EXPECT_EQ(error(), "a number is negative");
  EXPECT_EQ(start(9), UVMALLOC_CREDITS_FAILED);
  EXPECT_EQ(error(), "actor 9 does not exist; there are 2");
  for (const auto call :
       {&CreditCallsTest::finish, &CreditCallsTest::close, &CreditCallsTest::abandon}) {
    text.fill('\0');
    EXPECT_EQ((this->*call)(9), -1);
    EXPECT_EQ(error(), "actor 9 does not exist; there are 2");
  }
  EXPECT_EQ(finish(source), -1);
  EXPECT_EQ(error(), "'source' finishes an action and runs none");
}

TEST_F(CreditCallsTest, AnOutputThatIsTooLargeOrThatNobodyMakesIsRefused) {
  ASSERT_EQ(open(), 0);
  EXPECT_EQ(set_output_bytes(reg, 4), -1);
  EXPECT_EQ(error(), "'source' does not run");
  ASSERT_EQ(start(source), UVMALLOC_CREDITS_STARTED);
  EXPECT_EQ(set_output_bytes(reg, 11), -1);
  EXPECT_EQ(error(), "'source' made 11 bytes for register 'made'; its slots hold 10");
  EXPECT_EQ(held_bytes(), 10u);
  EXPECT_EQ(set_output_bytes(7, 1), -1) << "no such register";
}

TEST_F(CreditCallsTest, CallsBeforeAndAfterTheOpeningAreRefused) {
  EXPECT_EQ(start(source), UVMALLOC_CREDITS_FAILED);
  EXPECT_EQ(error(), "the credits are not open yet");
  EXPECT_EQ(held_bytes(), 0u);
  EXPECT_EQ(peak_bytes(), 0u);
  uvmalloc_credits_stop(credits.get(), "without effect");
  ASSERT_EQ(open(), 0);
  EXPECT_EQ(actor("late"), -1);
  EXPECT_EQ(error(), "the credits are open: nothing can be added");
  EXPECT_EQ(add_register("late", source, {sink}, 1, 1), -1);
  EXPECT_EQ(open(), -1);
  EXPECT_EQ(start(source), UVMALLOC_CREDITS_STARTED);
}

TEST_F(CreditCallsTest, AnErrorIsCutToTheCapacityAndEnded) {
  std::array<char, 8> small{};
  small.fill('?');
  EXPECT_EQ(uvmalloc_credits_finish(credits.get(), 0, small.data(), 6), -1);
  EXPECT_STREQ(small.data(), "the c");
  EXPECT_EQ(small[6], '?') << "beyond the capacity";
  EXPECT_EQ(uvmalloc_credits_finish(credits.get(), 0, small.data(), 0), -1);
  EXPECT_EQ(uvmalloc_credits_finish(credits.get(), 0, nullptr, 6), -1);
}

TEST_F(CreditCallsTest, AConsumerThatNeverFinishesIsNamed) {
  ASSERT_EQ(open(0.01), 0);
  ASSERT_EQ(start(source), UVMALLOC_CREDITS_STARTED);
  ASSERT_EQ(finish(source), 0);
  ASSERT_EQ(start(sink), UVMALLOC_CREDITS_STARTED);
  EXPECT_EQ(start(source), UVMALLOC_CREDITS_LATE);
  EXPECT_EQ(error().find("'sink' has not acknowledged slot 0 of register 'made' for 0."), 0u)
      << error();
}

TEST_F(CreditCallsTest, ABoundedWaitSaysWhetherAnActorWouldStart) {
  const auto wait = [&](int number) {
    return uvmalloc_credits_wait(credits.get(), number, 0.001, text.data(), text.size());
  };
  EXPECT_EQ(wait(sink), -1);
  EXPECT_EQ(error(), "the credits are not open yet");
  ASSERT_EQ(open(), 0);
  EXPECT_EQ(wait(source), 1);
  EXPECT_EQ(wait(sink), 0);
  ASSERT_EQ(close(source), 0);
  EXPECT_EQ(wait(sink), 1);
  EXPECT_EQ(start(sink), UVMALLOC_CREDITS_OVER);
}

TEST_F(CreditCallsTest, AfterAStopNobodyStartsAndTheFirstReasonCounts) {
  ASSERT_EQ(open(), 0);
  uvmalloc_credits_stop(credits.get(), "the disk is gone");
  uvmalloc_credits_stop(credits.get(), "another reason");
  for (const int number : {source, sink}) {
    text.fill('\0');
    EXPECT_EQ(start(number), UVMALLOC_CREDITS_STOPPED);
    EXPECT_EQ(error(), "the disk is gone");
  }
}

TEST_F(CreditCallsTest, AnAbandonedSinkEndsTheSourceAndHoldsNothing) {
  ASSERT_EQ(open(), 0);
  ASSERT_EQ(start(source), UVMALLOC_CREDITS_STARTED);
  ASSERT_EQ(finish(source), 0);
  ASSERT_EQ(start(sink), UVMALLOC_CREDITS_STARTED);
  EXPECT_EQ(abandon(sink), 0);
  EXPECT_EQ(start(source), UVMALLOC_CREDITS_OVER);
  EXPECT_EQ(held_bytes(), 0u);
}

struct CreditCallsWithNineBytesTest : CreditCallsTest {
  CreditCallsWithNineBytesTest() : CreditCallsTest(9) {}
};

TEST_F(CreditCallsWithNineBytesTest, MemoryThatHoldsNoTensorDoesNotOpen) {
  EXPECT_EQ(open(), -1);
  EXPECT_EQ(
      error(),
      "a memory quota of 9 bytes is too small for even one tensor to pass through all actors: "
      "'source' needs 10 bytes");
  EXPECT_EQ(start(source), UVMALLOC_CREDITS_FAILED);
  EXPECT_EQ(error(), "the credits are not open yet");
}

}  // namespace
