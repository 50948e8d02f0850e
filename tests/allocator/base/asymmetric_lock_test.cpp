// Mutual exclusion of both kinds of lock, checked with counters that only the lock protects.
#include "allocator/base/asymmetric_lock.hpp"

#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/exclusive_counters.hpp"
#include "tests/support/system_call_filter.hpp"
#include "tests/support/waiting_thread.hpp"

namespace uvm {
namespace {

class AsymmetricLockTest : public ::testing::TestWithParam<AsymmetricLock::Kind> {
 protected:
  void SetUp() override {
    AsymmetricLock::prepare();
    if (!AsymmetricLock::use(GetParam())) GTEST_SKIP() << "not in this build or on this system";
  }
  void TearDown() override {
    if (!AsymmetricLock::use(AsymmetricLock::Kind::kAsymmetric))
      AsymmetricLock::use(AsymmetricLock::Kind::kSymmetric);
  }

  struct Guarded : testing::ExclusiveCounters {
    AsymmetricLock lock;
  };
};

TEST_P(AsymmetricLockTest, TheOwnerSleepsWhileAnotherThreadHasTheLock) {
  AsymmetricLock own;
  AsymmetricLock* const lock = &own;
  AsymmetricLock::lock_all({&lock, 1});
  testing::WaitingThread owner([&] {
    own.lock_owner();
    own.unlock_owner();
  });
  EXPECT_TRUE(owner.falls_asleep());
  AsymmetricLock::unlock_all({&lock, 1});
  owner.join();
}

TEST_P(AsymmetricLockTest, TheOwnerAndATakerAreNeverInsideTogether) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  Guarded guarded;
  std::atomic<bool> over = false;
  std::uint64_t entered = 0;
  // Stores to cache lines that the other thread has just written stay in the processor's store
  // buffer for long. Unless the lock orders its own stores, they also stay there.
  struct alignas(64) Line {
    std::atomic<std::uint64_t> value = 0;
  };
  std::array<Line, 16> lines;
  auto write_lines = [&] {
    for (Line& line : lines) line.value.store(1, std::memory_order_relaxed);
  };
  std::thread owner([&] {
    for (; !over.load(std::memory_order_relaxed); ++entered) {
      write_lines();
      guarded.lock.lock_owner();
      guarded.count();
      guarded.lock.unlock_owner();
    }
  });
  AsymmetricLock* const lock = &guarded.lock;
  std::uint64_t takes = 0;
  for (; std::chrono::steady_clock::now() < end; ++takes) {
    write_lines();
    AsymmetricLock::lock_all({&lock, 1});
    for (int i = 0; i < 50; ++i) guarded.count();
    AsymmetricLock::unlock_all({&lock, 1});
  }
  over = true;
  owner.join();
  EXPECT_EQ(guarded.strangers, 0u);
  EXPECT_EQ(guarded.first, entered + takes * 50);
}

TEST_P(AsymmetricLockTest, ATakerOfAllHasThemAllAtOnce) {
  constexpr std::size_t kThreads = 4;
  constexpr std::uint64_t kRounds = 50'000;
  std::array<Guarded, kThreads> guarded;
  std::mutex takers;  // takers exclude each other with this mutex
  auto own = [&](std::size_t mine) {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      guarded[mine].lock.lock_owner();
      guarded[mine].count();
      guarded[mine].lock.unlock_owner();
      if (round % 64 != 0) continue;
      std::lock_guard lock(takers);
      std::vector<AsymmetricLock*> others;
      for (std::size_t other = 0; other < kThreads; ++other) {
        if (other != mine) others.push_back(&guarded[other].lock);
      }
      AsymmetricLock::lock_all(others);
      for (Guarded& one : guarded) one.count();  // also of the lock that this thread owns
      AsymmetricLock::unlock_all(others);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) threads.emplace_back(own, thread);
  for (std::thread& thread : threads) thread.join();
  constexpr std::uint64_t kTakes = kThreads * ((kRounds + 63) / 64);
  for (const Guarded& one : guarded) {
    EXPECT_EQ(one.strangers, 0u);
    EXPECT_EQ(one.first, kRounds + kTakes);
  }
}

TEST_P(AsymmetricLockTest, AnOwnerWaitsWhileItsLockIsTaken) {
  Guarded guarded;
  AsymmetricLock* const lock = &guarded.lock;
  AsymmetricLock::lock_all({&lock, 1});
  std::atomic<bool> inside = false;
  testing::WaitingThread owner([&] {
    guarded.lock.lock_owner();
    inside = true;
    guarded.lock.unlock_owner();
  });
  EXPECT_TRUE(owner.waits());
  EXPECT_FALSE(inside);
  AsymmetricLock::unlock_all({&lock, 1});
  owner.join();
  EXPECT_TRUE(inside);
}

TEST_P(AsymmetricLockTest, NoLocksAreTakenAtOnce) {
  AsymmetricLock::lock_all({});
  AsymmetricLock::unlock_all({});
}

// Acts like a system call filter that a program installs after its first allocation.
bool refuse_membarrier(bool all) {
  const testing::ArgumentValue expedited{0, MEMBARRIER_CMD_PRIVATE_EXPEDITED};
  return testing::refuse_system_call(SYS_membarrier, EPERM,
                                     all ? std::nullopt : std::optional(expedited));
}

TEST(AsymmetricLockBarrierTest, ABarrierThatFailsLaterIsReplacedByTheSlowOneOrEndsTheProcess) {
  AsymmetricLock::prepare();
  if (!AsymmetricLock::use(AsymmetricLock::Kind::kAsymmetric)) GTEST_SKIP() << "not in this build";
  auto take_with_filter = [](bool all) {
    if (!refuse_membarrier(all)) _exit(77);
    AsymmetricLock lock;
    AsymmetricLock* const one = &lock;
    AsymmetricLock::lock_all({&one, 1});
    AsymmetricLock::unlock_all({&one, 1});
    _exit(0);
  };
  EXPECT_EXIT(take_with_filter(false), ::testing::ExitedWithCode(0), "");
  EXPECT_DEATH(take_with_filter(true), "membarrier, which worked .* fails now");
}

INSTANTIATE_TEST_SUITE_P(Kinds, AsymmetricLockTest,
                         ::testing::Values(AsymmetricLock::Kind::kSymmetric,
                                           AsymmetricLock::Kind::kAsymmetric),
                         [](const auto& kind) {
                           return kind.param == AsymmetricLock::Kind::kSymmetric ? "Symmetric"
                                                                                 : "Asymmetric";
                         });

}  // namespace
}  // namespace uvm
