// What debug and sanitized builds say about mistakes.
#include <memory>
#include <mutex>

#include <uvmalloc/allocator/sanitizers.hpp>
#include <uvmalloc/runtime/ranked.hpp>

#include "support/allocator_fixture.hpp"

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
#endif

TEST_F(MisuseTest, MemoryThatIsUsedAgainMayBeTouched) {
  for (std::size_t size_bytes : {std::size_t{512}, std::size_t{100000}, 3 * kMiB}) {
    allocator->free(host(size_bytes));
    char* again = host(size_bytes);
    again[0] = again[size_bytes - 1] = 1;
    allocator->free(again);
  }
  allocator->release_cached();
  char* larger = host(8 * kMiB);
  larger[0] = larger[8 * kMiB - 1] = 1;
  allocator->free(larger);
}

#ifndef NDEBUG
TEST(LockRanks, TheWrongOrderStopsTheProgramWithBothNames) {
  Ranked<std::mutex, LockRank::kState> state;
  Ranked<std::mutex, LockRank::kCaches> caches;
  EXPECT_DEATH(
      {
        std::lock_guard inner(state);
        std::lock_guard outer(caches);
      },
      "'thread caches' is taken while 'state' is held");
}

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

TEST(LockRanks, TheRightOrderIsFine) {
  Ranked<std::mutex, LockRank::kCaches> caches;
  Ranked<std::mutex, LockRank::kState> state;
  for (int round = 0; round < 2; ++round) {
    std::lock_guard outer(caches);
    std::lock_guard inner(state);
  }
}

}  // namespace
}  // namespace uvm
