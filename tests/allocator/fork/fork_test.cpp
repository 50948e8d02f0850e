// What a forked child finds, and what it can do.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "allocator/cache/thread_caches.hpp"
#include "allocator/fork/fork_snapshot.hpp"

#include "allocator/process/framework_bridge.hpp"
#include "tests/support/allocator_stress.hpp"
#include "tests/support/fork_fixture.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/system_call_filter.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

using ForkTest = testing::ForkTest;

// Returns how many files with copies for forks a process has open.
std::ptrdiff_t snapshots_of(pid_t pid) {
  auto is_snapshot = [](const auto& entry) {
    std::error_code error;
    return std::filesystem::read_symlink(entry, error).string().find("uvmalloc-fork") !=
           std::string::npos;
  };
  const std::filesystem::directory_iterator files(fmt::format("/proc/{}/fd", pid));
  return std::count_if(begin(files), end(files), is_snapshot);
}

TEST_F(ForkTest, TheChildFindsLiveHostBlocksAndItsWritesStayItsOwn) {
  char* large = host(3 * kMiB);
  char* small = host(100);
  std::memset(large, 5, 3 * kMiB);
  std::memset(small, 6, 100);
  int code = fork_and_run([&] {
    if (large[0] != 5 || large[3 * kMiB - 1] != 5 || small[99] != 6) return 1;
    large[0] = 77;
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(large[0], 5);
}

TEST_F(ForkTest, TheChildSeesTheMomentOfTheForkNotLaterWrites) {
  char* block = host(2 * kMiB);
  block[0] = 1;
  const Waiting child = fork_and_wait([&] { return block[0]; });
  block[0] = 9;
  EXPECT_EQ(join(child), 1);
}

TEST_F(ForkTest, ChildrenForkedOneAfterAnotherShareOneCopy) {
  char* block = host(8 * kMiB);
  std::memset(block, 5, 8 * kMiB);
  auto body = [&] {
    bool whole = block[0] == 5 && block[8 * kMiB - 1] == 5;
    block[0] = 77;
    return whole ? 0 : 1;
  };
  const Waiting first = fork_and_wait(body);
  const Waiting second = fork_and_wait(body);
  EXPECT_EQ(forks().copied_bytes, 8 * kMiB);
  EXPECT_EQ(forks().shared_bytes, 8 * kMiB);
  EXPECT_EQ(join(first), 0);
  // The copy that the children share outlives the first child.
  const Waiting third = fork_and_wait(body);
  EXPECT_EQ(forks().copied_bytes, 8 * kMiB);
  EXPECT_EQ(join(second), 0);
  EXPECT_EQ(join(third), 0);
}

// The kernel refuses to seal a file while it holds one of its pages.
TEST_F(ForkTest, ACopyThatCannotBeSealedServesOneChild) {
  char* block = host(8 * kMiB);
  std::memset(block, 5, 8 * kMiB);
  const auto body = [&] { return block[0] == 5 && block[8 * kMiB - 1] == 5 ? 0 : 1; };
  std::thread([&] {
    ASSERT_TRUE(
        testing::refuse_system_call(SYS_fcntl, EBUSY, testing::ArgumentValue{1, F_ADD_SEALS}));
    const Waiting first = fork_and_wait(body);
    const Waiting second = fork_and_wait(body);
    EXPECT_EQ(forks().copied_bytes, 16 * kMiB);
    EXPECT_EQ(join(first), 0);
    EXPECT_EQ(join(second), 0);
  }).join();
}

TEST_F(ForkTest, WhatChangedSinceTheLastForkIsCopiedForTheNewChildAlone) {
  char* block = host(8 * kMiB);
  std::memset(block, 5, 8 * kMiB);
  const Waiting first =
      fork_and_wait([&] { return block[5 * kMiB] == 5 && block[0] == 5 ? 0 : 1; });
  block[5 * kMiB] = 6;
  const Waiting second =
      fork_and_wait([&] { return block[5 * kMiB] == 6 && block[7 * kMiB] == 5 ? 0 : 1; });
  EXPECT_EQ(forks().copied_bytes, 10 * kMiB) << "one page of 2 MiB more";
  // The third child reads pages from two files.
  const Waiting third =
      fork_and_wait([&] { return block[5 * kMiB] == 6 && block[7 * kMiB] == 5 ? 0 : 1; });
  EXPECT_EQ(forks().copied_bytes, 10 * kMiB);
  EXPECT_EQ(join(first), 0);
  EXPECT_EQ(join(second), 0);
  EXPECT_EQ(join(third), 0);
}

TEST_F(ForkTest, ACopyOfWhichMostHasChangedIsNotKeptForTheRest) {
  char* block = host(8 * kMiB);
  std::memset(block, 5, 8 * kMiB);
  const Waiting first = fork_and_wait([] { return 0; });
  std::memset(block, 6, 6 * kMiB);
  const Waiting second =
      fork_and_wait([&] { return block[0] == 6 && block[7 * kMiB] == 5 ? 0 : 1; });
  EXPECT_EQ(forks().copied_bytes, 16 * kMiB);
  EXPECT_EQ(snapshots_of(second.pid), 1) << "its own";
  EXPECT_EQ(join(first), 0);
  EXPECT_EQ(join(second), 0);
}

TEST_F(ForkTest, TheCopyGoesWithTheLastChild) {
  host(4 * kMiB);
  const Waiting child = fork_and_wait([] { return 0; });
  EXPECT_EQ(snapshots_of(getpid()), 0);
  std::ifstream maps("/proc/self/maps");
  const std::string mapped{std::istreambuf_iterator<char>(maps), {}};
  EXPECT_EQ(mapped.find("uvmalloc-fork"), std::string::npos);
  EXPECT_EQ(snapshots_of(child.pid), 1);
  EXPECT_EQ(join(child), 0);
  EXPECT_EQ(fork_and_run([] { return 0; }), 0);
  EXPECT_EQ(forks().copied_bytes, 8 * kMiB) << "nobody has the first copy any more";
}

TEST_F(ForkTest, AForkWithoutLiveBlocksForgetsTheCopiesOfEarlierOnes) {
  char* block = host(2 * kMiB);
  const Waiting first = fork_and_wait([] { return 0; });
  ASSERT_EQ(allocator->free(block), FreeResult::kFreed);
  EXPECT_EQ(fork_and_run([] { return 0; }), 0);
  block = host(2 * kMiB);
  block[0] = 3;
  EXPECT_EQ(fork_and_run([&] { return block[0]; }), 3);
  EXPECT_EQ(join(first), 0);
  EXPECT_EQ(forks().forks, 2u);
}

TEST_F(ForkTest, AChildThatForksHandsItsMemoryOn) {
  char* block = host(2 * kMiB);
  block[0] = 1;
  EXPECT_EQ(fork_and_run([&] {
              char* mine = host(2 * kMiB);
              block[0] = mine[0] = 2;
              pid_t pid = fork();
              if (pid == 0) {
                bool fine = block[0] == 2 && mine[0] == 2 &&
                            allocator->free(mine) == FreeResult::kFreed &&
                            allocator->free(block) == FreeResult::kFreed;
                _exit(fine ? 7 : 1);
              }
              int status = 0;
              waitpid(pid, &status, 0);
              return allocator->free(mine) == FreeResult::kFreed ? WEXITSTATUS(status) : 2;
            }),
            7);
}

TEST_F(ForkTest, AGrandchildIsWholeWhateverTheChildsThreadsWereDoing) {
  EXPECT_EQ(fork_and_run([&] {
              alarm(60);
              std::atomic<bool> stop = false;
              std::thread other([&] {
                while (!stop) allocator->free(host(2 * kMiB));
              });
              int failed = 0;
              for (int i = 0; i < testing::steps(50, 8); ++i) {
                pid_t pid = fork();
                if (pid == 0) {
                  alarm(10);
                  _exit(allocator->free(host(2 * kMiB)) == FreeResult::kFreed ? 0 : 1);
                }
                int status = 0;
                waitpid(pid, &status, 0);
                failed += status != 0;
              }
              stop = true;
              other.join();
              return failed;
            }),
            0);
}

TEST(ForkSnapshotTest, WhatTheHostHasNoMemoryForIsNotCopiedAndOneLineSaysSo) {
  std::vector<char> memory(64 << 10);
  ForkSnapshot snapshot;
  ForkStatistics statistics;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    snapshot.add(memory.data(), memory.size());
    snapshot.take({std::nullopt, 4096, true}, &statistics);
    snapshot.release();
    snapshot.say();
  }
  std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("4 KiB that the host has available"), std::string::npos) << said;
  EXPECT_NE(said.find("managed=False"), std::string::npos) << said;
  EXPECT_NE(said.find("UVMALLOC_HOST_MEMORY=ordinary"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(statistics.without_copy, 2u);
}

TEST_F(ForkTest, AChildsFileOfCopiesCannotBeWritten) {
  host(2 * kMiB)[0] = 1;
  EXPECT_EQ(fork_and_run([] {
              for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
                std::error_code error;
                const std::string target = std::filesystem::read_symlink(entry, error).string();
                if (target.find("uvmalloc-fork") == std::string::npos) continue;
                const int file = std::stoi(entry.path().filename().string());
                const bool is_refused = pwrite(file, "x", 1, 0) == -1 && errno == EPERM;
                return is_refused && ftruncate(file, 0) == -1 ? 0 : 1;
              }
              return 2;  // the child has no such file
            }),
            0);
}

TEST_F(ForkTest, TheChildAllocatesHostMemoryFromMallocAndMayFreeAll) {
  char* inherited = host(2 * kMiB);
  EXPECT_EQ(fork_and_run([&] {
              char* mine = host(5 * kMiB);
              mine[5 * kMiB - 1] = 1;
              if (allocator->free(mine) != FreeResult::kFreed) return 1;
              if (allocator->free(inherited) != FreeResult::kFreed) return 2;
              int foreign = 0;
              return allocator->free(&foreign) == FreeResult::kNotOurs ? 0 : 3;
            }),
            0);
  EXPECT_TRUE(allocator->find(inherited)->live) << "the parent's block is untouched";
}

TEST_F(ForkTest, TheChildsErrorSaysThatDeviceMemoryCannotBeUsed) {
  EXPECT_EQ(fork_and_run([&] {
              try {
                device(4096);
              } catch (const std::runtime_error& error) {
                return std::strstr(error.what(), "forked child") != nullptr ? 0 : 1;
              }
              return 2;
            }),
            0);
}

TEST_F(ForkTest, ASecondAllocatorIsMadeReadyForAForkToo) {
  const auto other_machine = std::make_shared<testing::FakeMachine>();
  CachingManagedAllocator other(std::make_unique<testing::FakeRuntime>(other_machine),
                                small_configuration());
  auto* mine = static_cast<char*>(other.allocate(Facade::kHost, 0, 3 * kMiB));
  mine[0] = 5;
  char* block = host(2 * kMiB);
  block[0] = 6;
  EXPECT_EQ(
      fork_and_run([&] {
        alarm(20);
        if (!other.inspection().in_forked_child() || !allocator->inspection().in_forked_child())
          return 1;
        if (mine[0] != 5 || block[0] != 6) return 2;
        void* made = other.allocate(Facade::kHost, 0, 100);
        if (other.free(made) != FreeResult::kFreed) return 3;
        if (other.free(mine) != FreeResult::kFreed) return 4;
        try {
          other.allocate(Facade::kDevice, 0, 100);
          return 5;
        } catch (const std::runtime_error&) {
          return 0;
        }
      }),
      0);
  EXPECT_TRUE(other.find(mine)->live);
}

// One thread waits for the device in the middle of a release, and another thread queries fences.
// Both threads hold locks that no fork waits for, and that stay locked in the child.
TEST_F(ForkTest, InAChildNoFunctionWaitsForWhatAThreadOfTheParentHad) {
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  auto stop_at = [&](std::function<void()> testing::FakeMachine::*place) {
    auto reached = std::make_shared<std::promise<void>>();
    (*machine).*place = [=] {
      reached->set_value();
      may_go.wait();
    };
    return reached->get_future();
  };
  char* block = host(4 * kMiB);
  MovedStorage* record =
      allocator->move(host(4 * kMiB), {Place::host(), Place::device(0), 0, stream(1), true});
  allocator->free(device(4 * kMiB, stream(1)));
  auto released = stop_at(&testing::FakeMachine::after_device_wait);
  std::thread releases([&] { allocator->release_cached(); });
  released.wait();
  char* fenced = device(200000, stream(1));
  allocator->record_use(fenced, 0, stream(2));
  machine->busy = {stream(2)};
  allocator->free(fenced);
  auto queried = stop_at(&testing::FakeMachine::before_query);
  std::thread queries([&] { device(300000, stream(3)); });
  queried.wait();

  auto throws = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const std::runtime_error&) {
      return true;
    }
    return false;
  };
  EXPECT_EQ(
      fork_and_run([&] {
        alarm(20);
        CachingManagedAllocator& child = *allocator;
        const auto no_stream = [](StreamHandle) { return false; };
        if (!child.find(block)->live || child.statistics().live_bytes.current == 0) return 1;
        child.inspection().segments();
        if (child.record_use(block, 0, stream(1)) || child.streams().record_use_of_all(block, 0) ||
            FrameworkBridge(child).mark_exported(block) ||
            !child.streams().uses_of(block).empty()) {
          return 2;
        }
        if (child.move(block, {Place::host(), Place::device(0), 0, stream(1), true}) ||
            child.prefetch(block, kMiB, Place::device(0), 0, stream(1)) ||
            child.advise(block, {.preferred = Place::device(0)})) {
          return 3;
        }
        FrameworkBridge(child).mark_live_exported();
        FrameworkBridge(child).note_left_host(block);
        child.streams().wait_for_uses(block);
        child.release(record);
        child.streams().forget(0, stream(1));
        child.release_cached();
        child.release_cached_of(Facade::kHost);
        child.limits().decay(std::chrono::steady_clock::now());
        if (!throws([&] { device(100); }) || !throws([&] { device(4 * kMiB); }) ||
            !throws([&] { child.allocate_aligned(Facade::kHost, 0, 100, 4096, nullptr); }) ||
            !throws([&] { child.private_pools().begin(0, 1, no_stream, false); }) ||
            !throws([&] { child.private_pools().retain(0, 1); }) ||
            !throws([&] { child.private_pools().restore(0, 1, {}); })) {
          return 4;
        }
        if (child.private_pools().end(0, 1) || child.private_pools().release(0, 1) ||
            child.private_pools().give_whole_pages(0, 1) ||
            child.private_pools().users(0, 1) != 0 || !child.private_pools().blocks(0, 1).empty()) {
          return 5;
        }
        if (child.tracing().start("/nowhere/trace").find("forked child") == std::string::npos) {
          return 6;
        }
        child.tracing().mark("here");
        child.tracing().stop();
        child.inspection().check_invariants();
        allocator.reset();
        return 0;
      }),
      0);
  go.set_value();
  releases.join();
  queries.join();
  machine->busy.clear();
}

TEST_F(ForkTest, BeyondTheLimitNothingIsCopiedAndOneLineSaysSo) {
  Configuration configuration = small_configuration();
  configuration.fork_limit_bytes = kMiB;
  start(configuration);
  char* block = host(4 * kMiB);
  ::testing::internal::CaptureStderr();
  int code = fork_and_run([&] { return block[0]; });
  std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(code, 0) << "the block is not there";
  EXPECT_NE(said.find("UVMALLOC_FORK_LIMIT"), std::string::npos) << said;
  EXPECT_NE(said.find("spawn"), std::string::npos) << said;
}

TEST_F(ForkTest, ADeviceBlockMovedToTheHostGoesAlong) {
  char* block = device(4 * kMiB, stream(1));
  block[7] = 3;
  to_host(block, stream(1));
  EXPECT_EQ(fork_and_run([&] { return block[7] == 3 ? 0 : 1; }), 0);
}

TEST_F(ForkTest, PagesThatHoldFreeBlocksTooAreCopied) {
  char* freed = host(100000);
  char* kept = host(100000);
  char* freed_too = host(100000);
  kept[99999] = 4;
  ASSERT_EQ(allocator->free(freed), FreeResult::kFreed);
  ASSERT_EQ(allocator->free(freed_too), FreeResult::kFreed);
  EXPECT_EQ(fork_and_run([&] { return kept[99999] == 4 ? 0 : 1; }), 0);
}

// The lock is biased to the forking thread, and another thread asks for it during the copy.
TEST_F(ForkTest, AChildIsWholeThoughAThreadWasAboutToLock) {
  char* block = host(64 * kMiB);
  for (int round = 0; round < 3; ++round) {
    std::memset(block, round + 1, 64 * kMiB);  // changed, so copied again
    for (int i = 0; i < 300; ++i) allocator->find(block);
    std::atomic<bool> over = false;
    std::thread other([&] {
      while (!over) {
        allocator->find(block);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
    EXPECT_EQ(fork_and_run([&] {
                alarm(20);
                return block[0] == round + 1 && host(5000) != nullptr ? 0 : 1;
              }),
              0);
    over = true;
    other.join();
  }
}

TEST_F(ForkTest, AChildIsWholeWhateverTheOtherThreadsWereDoing) {
  testing::AllocatorStress stress(*allocator, *machine);
  std::atomic<int> forks = 0;
  stress.run(3, std::chrono::milliseconds(1500), [&] {
    char* kept = host(5000);
    kept[4999] = 3;
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      allocator->statistics();
      allocator->inspection().segments();
      char* mine = host(5000);
      bool fine = kept[4999] == 3 && allocator->find(kept)->live &&
                  allocator->free(mine) == FreeResult::kFreed &&
                  allocator->free(kept) == FreeResult::kFreed;
      _exit(fine ? 0 : 1);
    }
    ++forks;
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    allocator->free(kept);
  });
  EXPECT_GT(forks, 0);
  allocator->inspection().check_invariants();
}

TEST_F(ForkTest, WhatOnlyADeviceUsesIsNotCopiedUntilItMovesToTheHost) {
  char* block = host(4 * kMiB);
  to_device(block);
  FrameworkBridge(*allocator).note_left_host(block);
  EXPECT_EQ(fork_and_run([] { return 0; }), 0);
  EXPECT_EQ(forks().copied_bytes, 0u);
  to_host(block);
  block[0] = 7;
  EXPECT_EQ(fork_and_run([&] { return block[0] == 7 ? 0 : 1; }), 0);
  EXPECT_EQ(forks().copied_bytes, 4 * kMiB);
  EXPECT_GT(forks().time.count(), 0);
}

TEST_F(ForkTest, UpToTheLimitIsCopied) {
  Configuration configuration = small_configuration();
  configuration.fork_limit_bytes = 4 * kMiB;
  start(configuration);
  char* block = host(4 * kMiB);
  block[0] = 7;
  EXPECT_EQ(fork_and_run([&] { return block[0] == 7 ? 0 : 1; }), 0);
  EXPECT_EQ(forks().without_copy, 0u);
}

TEST_F(ForkTest, AChildDoesNotKeepTheFileOfItsParentsTrace) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string file = folder / ("uvmalloc-fork-" + std::to_string(getpid()) + ".trace");
  ASSERT_EQ(allocator->tracing().start(file), "");
  auto has_it_open = [&] {
    std::error_code error;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd", error)) {
      if (std::filesystem::read_symlink(each, error) == file) return 1;
    }
    return 0;
  };
  EXPECT_EQ(has_it_open(), 1);
  EXPECT_EQ(fork_and_run(has_it_open), 0);
  allocator->tracing().stop();
  std::filesystem::remove(file);
}

// An allocator from uvmalloc_create() has no fork handlers, but its child may exit all the same.
TEST(ForkedThreadCaches, AChildThatOnlyExitsWaitsForNoThreadOfItsParent) {
  FigureStore figures(1);
  struct TakesNothing final : ReturnsBlocks {
    void free_block(void*) noexcept override {}
    void give_back(BlockChain) override {}
    void end_thread(BlockChain, const std::vector<StreamIndex>&) override {}
  } nobody;
  ThreadCaches caches(figures, kMiB, 0, nobody);
  std::atomic<bool> inside = false;
  std::atomic<bool> over = false;
  std::thread other([&] {
    ThreadCache* cache = caches.local();
    cache->lock.lock_owner();
    inside = true;
    while (!over) std::this_thread::yield();
    cache->lock.unlock_owner();
  });
  while (!inside) std::this_thread::yield();
  ASSERT_NE(caches.local(), nullptr);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    // exit() runs this handler after the thread's cleanup, before any handler of the test program.
    std::atexit([] { _exit(0); });
    std::exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  over = true;
  other.join();
  caches.close();
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace uvm
