// What a forked child finds. The fake machine's memory would be inherited; the real one's is not,
// so each test unmaps it in the child before the allocator's handler runs.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "support/allocator_fixture.hpp"
#include "support/allocator_stress.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class ForkTest : public testing::AllocatorTest {
 protected:
  // Runs `child` in a forked process and returns its exit code, or 128 + the signal that ended it.
  template <class Body>
  int fork_and_run(Body child) {
    allocator->before_fork();
    pid_t pid = fork();
    if (pid == 0) {
      for (auto& [address, size] : machine->allocations) munmap(address, size);
      allocator->after_fork_in_child();
      _exit(child());
    }
    allocator->after_fork_in_parent();
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
};

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
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  allocator->before_fork();
  pid_t pid = fork();
  if (pid == 0) {
    for (auto& [address, size] : machine->allocations) munmap(address, size);
    allocator->after_fork_in_child();
    char go = 0;
    if (read(pipe_ends[0], &go, 1) != 1) _exit(2);
    _exit(block[0] == 1 ? 0 : 1);
  }
  allocator->after_fork_in_parent();
  block[0] = 9;
  ASSERT_EQ(write(pipe_ends[1], "x", 1), 1);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
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

TEST_F(ForkTest, TheChildIsToldThatDeviceMemoryCannotBeUsed) {
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

TEST_F(ForkTest, AChildIsWholeWhateverTheOtherThreadsWereDoing) {
  testing::AllocatorStress stress(*allocator, *machine);
  std::atomic<int> forks = 0;
  stress.run(3, std::chrono::milliseconds(1500), [&] {
    char* kept = host(5000);
    kept[4999] = 3;
    allocator->before_fork();
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      allocator->after_fork_in_child();
      allocator->statistics();
      allocator->segments();
      char* mine = host(5000);
      bool fine = kept[4999] == 3 && allocator->find(kept)->live &&
                  allocator->free(mine) == FreeResult::kFreed &&
                  allocator->free(kept) == FreeResult::kFreed;
      _exit(fine ? 0 : 1);
    }
    allocator->after_fork_in_parent();
    ++forks;
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    allocator->free(kept);
  });
  EXPECT_GT(forks, 0);
  allocator->check_invariants();
}

}  // namespace
}  // namespace uvm
