// A mutex becomes biased to a thread that takes it often enough, and loses the bias when another
// thread takes it.
#include "allocator/base/biased_mutex.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/exclusive_counters.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/waiting_thread.hpp"

namespace uvm {
namespace {

struct Guarded : testing::ExclusiveCounters {
  BiasedMutex mutex;

  void count() {
    std::lock_guard lock(mutex);
    ExclusiveCounters::count();
  }
};

TEST(BiasedMutex, ThreadsThatTakeTurnsAreNeverInsideTogether) {
  AsymmetricLock::prepare();
  constexpr std::uint64_t kRounds = 200'000;
  Guarded guarded;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t round = 0; round < kRounds; ++round) guarded.count();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(guarded.strangers, 0u);
  EXPECT_EQ(guarded.first, 4 * kRounds);
}

TEST(BiasedMutex, AForkedChildHasItWhateverOtherThreadsWereDoing) {
  AsymmetricLock::prepare();
  Guarded guarded;
  for (int i = 0; i < 1000; ++i) guarded.count();  // biases the mutex to this thread
  guarded.mutex.lock_for_fork();
  testing::WaitingThread other([&] { guarded.count(); });
  ASSERT_TRUE(other.waits());
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    guarded.mutex.after_fork_in_child();
    guarded.mutex.unlock();
    for (int i = 0; i < 1000; ++i) guarded.count();
    _exit(guarded.strangers == 0 ? 0 : 1);
  }
  guarded.mutex.unlock();
  other.join();
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  guarded.count();
  EXPECT_EQ(guarded.first, 1002u);
}

// Signals stop threads anywhere, for longer than another thread needs to bias the mutex to itself.
TEST(BiasedMutex, AThreadThatIsStoppedAnywhereDisturbsNobody) {
  AsymmetricLock::prepare();
  struct sigaction stop {};
  static std::atomic<std::uint64_t> stopped = 0;
  stop.sa_handler = [](int) {
    ++stopped;
    const timespec while_others_work{0, 200'000};
    nanosleep(&while_others_work, nullptr);
  };
  stop.sa_flags = SA_RESTART;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &stop, &before), 0);
  Guarded guarded;
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> rounds = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      std::uint64_t mine = 0;
      for (; !over.load(std::memory_order_relaxed); ++mine) guarded.count();
      rounds += mine;
    });
  }
  const std::uint64_t first = stopped;
  constexpr std::size_t kSignals = testing::steps(10'000, 300);
  for (std::size_t next = 0; next < kSignals; ++next) {
    pthread_kill(threads[next % threads.size()].native_handle(), SIGUSR1);
    while (stopped == first + next) std::this_thread::yield();
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(guarded.strangers, 0u);
  EXPECT_EQ(guarded.first, rounds.load());
}

}  // namespace
}  // namespace uvm
