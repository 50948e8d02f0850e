// Several threads at once: blocks pass between threads, threads end and are replaced, statistics
// are read meanwhile. Figures are checked exactly. A peak is checked against the limits that hold
// for every order of the calls in progress.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/allocator_stress.hpp"

namespace uvm {
namespace {

using std::chrono::milliseconds;
using testing::AllocatorStress;
using testing::kMiB;
using testing::stream;

using AllocatorThreads = testing::AllocatorTest;

TEST_F(AllocatorThreads, BlocksFromHandToHandKeepTheirBytesAndEveryFigureIsExact) {
  AllocatorStress stress(*allocator, *machine);
  stress.run(4, milliseconds(1500));
  stress.finish();
  EXPECT_EQ(stress.refused(), 0u) << "a fourth of the budget is in use at most";
}

TEST_F(AllocatorThreads, WithoutThreadCachesToo) {
  start(without_thread_caches());
  AllocatorStress stress(*allocator, *machine);
  stress.run(4, milliseconds(800));
  stress.finish();
}

TEST_F(AllocatorThreads, UnderPressureToo) {
  Configuration configuration = small_configuration();
  configuration.budget_bytes = 24 * kMiB;
  configuration.span_bytes = 6 * kMiB;
  start(configuration);
  AllocatorStress stress(*allocator, *machine);
  stress.run(4, milliseconds(1500));
  stress.finish();
  EXPECT_GT(allocator->statistics().pressure_rounds, 0u);
}

TEST_F(AllocatorThreads, WhereTheySoonKeepLargeBlocksToo) {
  for (int round = 0; round < 8; ++round) {
    Configuration configuration = small_configuration();
    configuration.large_hits_required = 1;
    start(configuration);
    AllocatorStress stress(*allocator, *machine);
    stress.run(4, milliseconds(100));
    stress.finish();
  }
}

// Streams begin and end in every thread, other threads free some of their blocks, and handles are
// reused. No block has two owners, and no more pools remain than streams existed at once.
TEST_F(AllocatorThreads, StreamsThatComeAndGoInManyThreadsShareTheirPools) {
  constexpr std::uintptr_t kThreads = 4;
  std::mutex mutex;
  std::vector<std::pair<char*, char>> handed_on;  // a block and its fill byte
  auto put = [&](char* block, char mark) {
    std::memset(block, mark, 512);
    std::lock_guard lock(mutex);
    handed_on.emplace_back(block, mark);
  };
  auto take = [&] {
    std::unique_lock lock(mutex);
    if (handed_on.empty()) return;
    const auto [block, mark] = handed_on.front();
    handed_on.erase(handed_on.begin());
    lock.unlock();
    EXPECT_EQ(block[0], mark);
    EXPECT_EQ(block[511], mark);
    EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  };
  std::vector<std::thread> threads;
  for (std::uintptr_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uintptr_t round = 0; round < 150; ++round) {
        const StreamHandle mine = stream(1 + thread + round % 3 * kThreads);
        for (std::size_t size_bytes : {std::size_t{512}, std::size_t{9000}, std::size_t{100000}}) {
          put(device(size_bytes, mine), static_cast<char>(thread * 64 + round % 64));
          allocator->free(device(size_bytes, mine));
          take();
        }
        allocator->streams().forget(0, mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  allocator->inspection().check_invariants();
  while (!handed_on.empty()) take();
  const Statistics now = allocator->statistics();
  EXPECT_EQ(now.live_bytes.current, 0u);
  EXPECT_LE(now.streams.size(), kThreads);
}

// A thread remembers the records of its blocks. Other threads free these blocks, and new blocks
// reuse the records and the pages.
TEST_F(AllocatorThreads, AnAddressThatHasHadAnotherBlockSinceIsFreedAsTheBlockItIsNow) {
  auto elsewhere = [](auto work) { std::thread(work).join(); };
  char* keeps_the_span = device(2 * kMiB, stream(1));
  for (std::size_t size_bytes : {std::size_t{512}, std::size_t{50000}, 3 * kMiB}) {
    char* first = device(size_bytes);
    char* second = nullptr;
    char* third = nullptr;
    elsewhere([&] {
      allocator->free(first);
      allocator->release_cached();
      second = device(5 * kMiB);
    });
    ASSERT_EQ(second, first);
    // This request may reuse the record of `first`.
    elsewhere([&] { third = device(size_bytes); });
    EXPECT_EQ(allocator->free(second), FreeResult::kFreed);
    EXPECT_EQ(allocator->statistics().live_bytes.current,
              2 * kMiB + round_up(size_bytes, kGranule));
    EXPECT_EQ(allocator->free(third), FreeResult::kFreed);
    EXPECT_EQ(allocator->free(third), FreeResult::kDouble);
    EXPECT_EQ(allocator->statistics().live_bytes.current, 2 * kMiB);
    allocator->inspection().check_invariants();
    allocator->release_cached();
  }
  allocator->free(keeps_the_span);
}

TEST_F(AllocatorThreads, AllocatorsMayGoBeforeTheirThreadsInAnyOrder) {
  std::atomic<int> ready = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<CachingManagedAllocator>> allocators;
  for (int i = 0; i < 3; ++i) {
    allocators.push_back(std::make_unique<CachingManagedAllocator>(
        std::make_unique<testing::FakeRuntime>(machine), small_configuration()));
  }
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (auto& one : allocators) one->free(one->allocate(Facade::kDevice, 0, 100, stream(1)));
      ++ready;
      while (!over) std::this_thread::yield();
    });
  }
  while (ready != 3) std::this_thread::yield();
  allocators[1].reset();
  allocators[0].reset();
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocators[2]->statistics().live_bytes.current, 0u);
  allocators[2].reset();
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

// A process-wide allocator is never destroyed. Static objects free into the allocator after main()
// and after the first thread's cache was destroyed.
TEST(AllocatorExit, StaticObjectsFreeIntoAnAllocatorThatIsNeverDestroyed) {
  EXPECT_EXIT(
      {
        auto machine = std::make_shared<testing::FakeMachine>();
        static auto* allocator = new CachingManagedAllocator(
            std::make_unique<testing::FakeRuntime>(machine), Configuration{});
        struct Holder {
          void* block = nullptr;
          int code = 0;
          ~Holder() {
            bool freed = allocator->free(block) == FreeResult::kFreed;
            bool counted = allocator->statistics().live_bytes.current == 0;
            _exit(freed && counted ? 0 : 1);
          }
        };
        static Holder holder;
        holder.block = allocator->allocate(Facade::kHost, 0, 5 * kMiB);
        allocator->free(allocator->allocate(Facade::kDevice, 0, 100, stream(1)));
        std::exit(2);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace uvm
