// Values that a process makes once, also if it forks.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <stdexcept>
#include <thread>

#include "runtime/made_once.hpp"

#include "tests/support/waiting_thread.hpp"

namespace uvm {
namespace {

// Returns the result of `body` in a child. An alarm ends a child that waits for a parent's thread.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MadeOnceTest, TheValueIsMadeOnceAndForAll) {
  static MadeOnce<int> once;  // never destroyed
  int& first = once.get([] { return std::make_unique<int>(1); });
  int& second = once.get([] { return std::make_unique<int>(2); });
  EXPECT_EQ(first, 1);
  EXPECT_EQ(&first, &second);
}

TEST(MadeOnceTest, AnotherThreadWaitsForTheOneThatMakesIt) {
  static MadeOnce<int> once;  // never destroyed
  std::unique_ptr<testing::WaitingThread> other;
  int seen = 0;
  once.get([&] {
    other = std::make_unique<testing::WaitingThread>(
        [&] { seen = once.get([] { return std::make_unique<int>(2); }); });
    EXPECT_TRUE(other->waits());
    return std::make_unique<int>(1);
  });
  other->join();
  EXPECT_EQ(seen, 1);
}

TEST(MadeOnceTest, AfterAnExceptionTheNextCallMakesIt) {
  static MadeOnce<int> once;  // never destroyed
  const auto fails = []() -> std::unique_ptr<int> { throw std::runtime_error("no"); };
  EXPECT_THROW(once.get(fails), std::runtime_error);
  EXPECT_EQ(once.get([] { return std::make_unique<int>(3); }), 3);
}

TEST(MadeOnceTest, AChildThatIsForkedMeanwhileHasTheLostValueAndDoesNotWait) {
  static MadeOnce<int> once;  // never destroyed
  int in_the_child = 0;
  once.get([&] {
    // Forks in another thread, so the child does not have this thread.
    std::thread([&] {
      in_the_child = in_child([&] {
        return once.get([] { return std::make_unique<int>(1); },
                        [] { return std::make_unique<int>(7); });
      });
    }).join();
    return std::make_unique<int>(1);
  });
  EXPECT_EQ(in_the_child, 7);
  EXPECT_EQ(in_child([&] { return once.get([] { return std::make_unique<int>(2); }); }), 1);
}

}  // namespace
}  // namespace uvm
