#include "hints/sharing/shared_turns.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.hpp"

namespace uvm::sharing {
namespace {

constexpr TurnRules kRules{.device_bytes = 100, .turn_ns = 20'000'000, .idle_ns = 10'000'000};
// No program counts as idle.
constexpr TurnRules kPatientRules{
    .device_bytes = 100, .turn_ns = 5'000'000, .idle_ns = 600'000'000'000};

// A wait that honest programs cannot cause ends soon; a turn lasts longer than the test.
constexpr TurnRules kSuspiciousRules{.device_bytes = 100,
                                     .turn_ns = 600'000'000'000,
                                     .idle_ns = 1'000'000,
                                     .longest_turn_ns = 50'000'000};
constexpr TurnRules kLongTurns{
    .device_bytes = 100, .turn_ns = 600'000'000'000, .idle_ns = 10'000'000};

// Memory that forked programs share.
struct Shared {
  std::atomic<std::uint64_t> now_ns{1};
  std::atomic<int> inside{0};
  std::atomic<int> overlaps{0};
  std::atomic<int> kernels{0};
  std::atomic<int> leaves{0};
  std::atomic<int> ready{0};
};

// The programs' common time. It passes only during waits of one kind, or during none. kStops also
// stops the program when it waits for its turn.
class FakeClock final : public SharingClock {
 public:
  enum Passes : std::uint8_t { kNever, kForTurns, kForLocks, kStops };

  FakeClock(Shared* shared, Passes passes) : shared_(shared), passes_(passes) {}

  std::uint64_t now_ns() const override { return shared_->now_ns; }
  void sleep(std::chrono::nanoseconds time) const override { wait(time, kForLocks); }
  void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                       std::chrono::nanoseconds most) const override {
    if (passes_ == kStops) raise(SIGSTOP);
    if (word == seen) wait(most, kForTurns);
  }

 private:
  void wait(std::chrono::nanoseconds time, Passes during) const {
    if (passes_ == during) shared_->now_ns += static_cast<std::uint64_t>(time.count());
    std::this_thread::yield();
  }

  Shared* const shared_;
  const Passes passes_;
};

class SharedTurnsTest : public ::testing::Test {
 protected:
  static Shared* mapped() {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return new (memory) Shared;
  }
  void TearDown() override { munmap(shared, sizeof(Shared)); }

  std::unique_ptr<SharedTurns> join(std::uint64_t bytes, const TurnRules& rules = kRules) {
    return join(bytes, rules, clock);
  }
  std::unique_ptr<SharedTurns> join(std::uint64_t bytes, const TurnRules& rules,
                                    const SharingClock& with) {
    std::string why;
    auto turns = SharedTurns::join(folder, "card", rules, &why, with);
    EXPECT_NE(turns, nullptr) << why;
    if (turns != nullptr) turns->set_held_bytes(bytes);
    return turns;
  }
  pid_t start(const std::function<void()>& program) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // some programs never end
      program();
      _exit(0);
    }
    return child;
  }
  // Maps the table that programs have joined. Any process of the user can do so.
  TurnTable& table() {
    const int descriptor = open(table_file().c_str(), O_RDWR | O_CLOEXEC);
    void* memory =
        mmap(nullptr, sizeof(TurnTable), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return *static_cast<TurnTable*>(memory);  // mapped until the process ends
  }
  std::string table_file(const std::string& device = "card") const {
    return folder + "/uvmalloc-turns-2-" + std::to_string(geteuid()) + "-" + device;
  }
  static void wait_for(const std::atomic<int>& count, int least) {
    while (count < least) std::this_thread::yield();
  }
  static int result_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }
  static void wait_until_stopped(pid_t child) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void kernel(SharedTurns& turns) {
    turns.before_kernel([this] { ++shared->leaves; });
    ++shared->kernels;
  }

  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  Shared* const shared = mapped();
  const FakeClock clock{shared, FakeClock::kForTurns};
};

TEST_F(SharedTurnsTest, AProgramThatIsKilledTakesItsTurnAndItsBytesWithIt) {
  const pid_t holder = start([this] {
    const auto turns = join(80);
    ++shared->ready;
    wait_for(shared->ready, 2);
    kernel(*turns);
    ++shared->ready;
    pause();
  });
  wait_for(shared->ready, 1);
  const auto turns = join(80);
  ++shared->ready;
  wait_for(shared->ready, 3);
  EXPECT_TRUE(turns->is_crowded());
  EXPECT_EQ(turns->figures().programs, 2u);
  kill(holder, SIGKILL);
  result_of(holder);
  kernel(*turns);
  EXPECT_EQ(turns->figures().programs, 1u);
  EXPECT_EQ(turns->figures().waited_ns, 0u);
  EXPECT_FALSE(turns->is_crowded());
}

TEST_F(SharedTurnsTest, TurnsOfProgramsThatAreGoneAreNotThoseOfTheNext) {
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    children.push_back(start([this] {
      const auto turns = join(80);
      ++shared->ready;
      wait_for(shared->ready, 2);
      kernel(*turns);  // the first of the two gets a turn
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
  const auto turns = join(80);
  kernel(*turns);
  EXPECT_EQ(turns->figures().turns, 0u);
  EXPECT_EQ(turns->figures().waited_ns, 0u);
}

TEST_F(SharedTurnsTest, AStoppedHolderLosesItsTurnAfterItsIdleTime) {
  const pid_t holder = start([this] {
    const auto turns = join(80);
    ++shared->ready;
    wait_for(shared->ready, 2);
    kernel(*turns);
    raise(SIGSTOP);
  });
  wait_for(shared->ready, 1);
  const auto turns = join(80);
  ++shared->ready;
  wait_until_stopped(holder);
  kernel(*turns);
  EXPECT_EQ(turns->figures().waited_ns, 2 * kRules.idle_ns) << "one nap more than the idle time";
  shared->now_ns += kRules.turn_ns;
  kernel(*turns);
  EXPECT_EQ(turns->figures().turns, 1u) << "nobody else waits for a turn";
  EXPECT_EQ(turns->figures().programs, 2u);
  kill(holder, SIGKILL);
  result_of(holder);
}

TEST_F(SharedTurnsTest, AStoppedWaiterDelaysTheNextByItsIdleTime) {
  const auto launch_for_ever = [this](const TurnRules& rules, const SharingClock& with) {
    const auto turns = join(80, rules, with);
    ++shared->ready;
    while (true) kernel(*turns);
  };
  const pid_t holder = start([&] { launch_for_ever(kLongTurns, clock); });
  wait_for(shared->ready, 1);
  const pid_t waiter =
      start([&] { launch_for_ever(kPatientRules, FakeClock(shared, FakeClock::kStops)); });
  wait_until_stopped(waiter);
  const auto turns = join(80, kLongTurns);
  kill(holder, SIGKILL);
  result_of(holder);
  kernel(*turns);
  EXPECT_EQ(turns->figures().programs, 2u);
  EXPECT_EQ(turns->figures().turns, 1u);
  EXPECT_EQ(turns->figures().waited_ns, 2 * kLongTurns.idle_ns) << "one nap more";
  kill(waiter, SIGKILL);
  result_of(waiter);
}

// A broken program could write this: it has and uses the turn, has waited longest, and never ends.
TEST_F(SharedTurnsTest, AProgramThatWritesFalseWordsDelaysOthersButNotForEver) {
  const pid_t liar = start([this] {
    const auto turns = join(80);
    TurnTable& words = table();
    for (;; ++shared->ready) {
      words.holder = 1;
      words.turn_began_ns = words.last_kernel_ns = ~std::uint64_t{0};
      words.programs[0].waits_since_ns = 1;
    }
  });
  wait_for(shared->ready, 1);
  const auto turns = join(80, kSuspiciousRules);
  kernel(*turns);
  EXPECT_EQ(turns->figures().waited_ns,
            kSuspiciousRules.longest_wait_ns(2) + kSuspiciousRules.idle_ns);
  kernel(*turns);
  kernel(*turns);
  EXPECT_TRUE(turns->is_crowded());
  kill(liar, SIGKILL);
  result_of(liar);
}

TEST_F(SharedTurnsTest, AfterOneWaitForALockThatNobodyGivesBackKernelsRunWithoutTurns) {
  const pid_t holder = start([this] {
    const auto turns = join(80, kLongTurns);
    wait_for(shared->ready, 1);  // no program could join later
    kernel(*turns);              // takes the turn, because a later request would release the lock
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_start = kMostPrograms;
    lock.l_len = 1;
    fcntl(open(table_file().c_str(), O_RDWR), F_SETLKW, &lock);
    ++shared->ready;
    while (true) kernel(*turns);
  });
  const FakeClock passes_for_locks(shared, FakeClock::kForLocks);
  const auto turns = join(80, kLongTurns, passes_for_locks);
  ++shared->ready;
  wait_for(shared->ready, 2);
  const int before = shared->leaves;
  for (int i = 0; i < 50; ++i) kernel(*turns);
  EXPECT_EQ(shared->leaves, before + 1) << "each leave is followed by a wait of a second";
  kill(holder, SIGKILL);
  result_of(holder);
}

TEST_F(SharedTurnsTest, ProgramsRunInTurnAndEachMovesItsMemoryAwayBefore) {
  constexpr int kPrograms = 3;
  constexpr int kChanges = 60;
  std::vector<pid_t> children;
  for (int i = 0; i < kPrograms; ++i) {
    children.push_back(start([this] {
      const FakeClock stands_still(shared, FakeClock::kNever);
      const auto turns = join(80, kPatientRules, stands_still);
      ++shared->ready;
      wait_for(shared->ready, kPrograms);
      for (int kernels = 0; kernels < 1'000'000 && shared->leaves < kChanges; ++kernels) {
        turns->before_kernel([this] { ++shared->leaves; });
        if (++shared->inside > 1) ++shared->overlaps;
        shared->now_ns += kPatientRules.turn_ns / 10;
        std::this_thread::yield();
        --shared->inside;
      }
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(result_of(child), 0);
  EXPECT_EQ(shared->overlaps, 0);
  EXPECT_GE(shared->leaves, kChanges);
}

TEST_F(SharedTurnsTest, ThreadsOfAProgramShareItsTurn) {
  const pid_t other = start([this] {
    const auto turns = join(80);
    ++shared->ready;
    for (int i = 0; i < 500; ++i) {
      kernel(*turns);
      shared->now_ns += 100'000;
    }
  });
  wait_for(shared->ready, 1);
  const auto turns = join(80);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int kernels = 0; kernels < 100; ++kernels) kernel(*turns);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(result_of(other), 0);
  EXPECT_EQ(shared->kernels, 900);
}

TEST_F(SharedTurnsTest, AProgramJoinsWhileAnotherLeaves) {
  const auto joins = [this] {
    for (int i = 0; i < 1000; ++i) {
      std::string why;
      if (SharedTurns::join(folder, "card", kRules, &why, clock) == nullptr) _exit(1);
    }
  };
  const pid_t other = start(joins);
  const pid_t another = start(joins);
  EXPECT_EQ(result_of(other), 0);
  EXPECT_EQ(result_of(another), 0);
}

TEST_F(SharedTurnsTest, ProgramsThatAreKilledAtAnyPointNeverStopTheOthers) {
  std::mt19937 random(1);
  const auto endless = [this] {
    std::string why;
    const auto turns = SharedTurns::join(folder, "card", kRules, &why, clock);
    if (turns == nullptr) _exit(1);
    turns->set_held_bytes(80);
    while (true) kernel(*turns);
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) children.push_back(start(endless));
  for (int round = 0; round < 200; ++round) {
    wait_for(shared->kernels, shared->kernels + static_cast<int>(random() % 8));
    pid_t& victim = children[random() % children.size()];
    kill(victim, SIGKILL);
    result_of(victim);
    victim = start(endless);
  }
  const int before = shared->kernels;
  const auto turns = join(80);
  for (int i = 0; i < 20; ++i) kernel(*turns);
  EXPECT_GT(shared->kernels, before);
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    result_of(child);
  }
}

TEST_F(SharedTurnsTest, AForkedChildThatOnlyDestroysTheObjectChangesNothing) {
  auto turns = join(80);
  EXPECT_EQ(result_of(start([&] { turns.reset(); })), 0);
  const pid_t other = start([this] {
    const auto mine = join(80);
    _exit(mine->figures().programs == 2 ? 0 : 1);
  });
  EXPECT_EQ(result_of(other), 0);
}

TEST_F(SharedTurnsTest, WhatIsWrongIsSaid) {
  const auto turns = join(80);
  std::string why;
  EXPECT_EQ(SharedTurns::join(folder, "card", kRules, &why), nullptr);
  EXPECT_EQ(why, "another allocator of this process shares it already");
  EXPECT_EQ(SharedTurns::join(folder + "/none", "card", kRules, &why), nullptr);
  EXPECT_NE(why.find("No such file or directory"), std::string::npos) << why;
  const std::string link = table_file("link");
  std::filesystem::create_symlink("/etc/passwd", link);
  EXPECT_EQ(SharedTurns::join(folder, "link", kRules, &why), nullptr);
  EXPECT_NE(why.find(link), std::string::npos) << why;
  std::ofstream(folder + "/precious") << "precious";
  std::filesystem::create_hard_link(folder + "/precious", table_file("name"));
  EXPECT_EQ(SharedTurns::join(folder, "name", kRules, &why), nullptr);
  EXPECT_EQ(why, table_file("name") + " has a second name");
  EXPECT_EQ(std::filesystem::file_size(folder + "/precious"), 8u);
}

TEST_F(SharedTurnsTest, AThirtyThirdProgramIsRefused) {
  std::vector<pid_t> children;
  for (std::size_t i = 0; i < kMostPrograms; ++i) {
    children.push_back(start([this] {
      const auto turns = join(1);
      ++shared->ready;
      pause();
    }));
  }
  wait_for(shared->ready, kMostPrograms);
  std::string why;
  EXPECT_EQ(SharedTurns::join(folder, "card", kRules, &why), nullptr);
  EXPECT_EQ(why, "32 programs share it already, the maximum");
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    result_of(child);
  }
  EXPECT_NE(join(1), nullptr);
}

}  // namespace
}  // namespace uvm::sharing
