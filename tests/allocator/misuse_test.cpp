// What debug and sanitized builds report about misuse.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "allocator/base/sanitizers.hpp"
#include "runtime/ranked.hpp"

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/waiting_thread.hpp"

#if UVMALLOC_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace uvm {
namespace {

using testing::kMiB;
using MisuseTest = testing::AllocatorTest;

#if UVMALLOC_ADDRESS_SANITIZER
TEST_F(MisuseTest, AUseAfterFreeIsReportedWhereItHappens) {
  for (std::size_t size_bytes : {std::size_t{512}, std::size_t{100000}, 3 * kMiB}) {
    volatile char* block = host(size_bytes);
    block[0] = 1;
    allocator->free(const_cast<char*>(block));
    EXPECT_DEATH(block[0] = 2, "use-after-poison") << size_bytes;
  }
}

TEST_F(MisuseTest, MemoryThatIsUsedAgainMayBeTouched) {
  for (std::size_t size_bytes : {std::size_t{512}, std::size_t{100000}, 3 * kMiB}) {
    char* block = host(size_bytes);
    allocator->free(block);
    EXPECT_NE(__asan_region_is_poisoned(block, size_bytes), nullptr) << size_bytes;
    char* again = host(size_bytes);
    EXPECT_EQ(again, block);
    EXPECT_EQ(__asan_region_is_poisoned(again, size_bytes), nullptr) << size_bytes;
    allocator->free(again);
  }
  allocator->release_cached();
  char* larger = host(8 * kMiB);
  EXPECT_EQ(__asan_region_is_poisoned(larger, 8 * kMiB), nullptr);
  allocator->free(larger);
}
#endif

// Only the thread that reports the second free waits for the stalled reader of the log.
TEST_F(MisuseTest, AReaderOfLinesThatStallsStallsNoOtherThread) {
  char* block = host(3 * kMiB);
  allocator->free(block);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int before = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const std::string filler(4096, 'x');
  while (write(ends[1], filler.data(), filler.size()) > 0) {
  }
  fcntl(ends[1], F_SETFL, 0);
  testing::WaitingThread stalled([&] { EXPECT_EQ(allocator->free(block), FreeResult::kDouble); });
  EXPECT_TRUE(stalled.waits());
  auto others = std::async(std::launch::async, [&] {
    allocator->free(host(20 * kMiB));
    allocator->statistics();
  });
  EXPECT_EQ(others.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  // The reader continues.
  dup2(before, STDERR_FILENO);
  close(before);
  close(ends[1]);
  std::string read_bytes(1 << 20, ' ');
  while (read(ends[0], read_bytes.data(), read_bytes.size()) > 0) {
  }
  close(ends[0]);
  stalled.join();
}

#ifndef NDEBUG
TEST(LockRanks, ADriverCallUnderALockStopsTheProgramWithTheCallsName) {
  const testing::FakeRuntime runtime(std::make_shared<testing::FakeMachine>());
  Ranked<std::mutex, LockRank::kFences> fences;
  Ranked<std::mutex, LockRank::kArena> arena;
  std::lock_guard may_wait(fences);
  EXPECT_TRUE(runtime.synchronize_device(0).ok());
  EXPECT_DEATH(
      {
        std::lock_guard lock(arena);
        runtime.synchronize_device(0);
      },
      "synchronize_device is called with a lock of the allocator held");
}
#endif

}  // namespace
}  // namespace uvm
