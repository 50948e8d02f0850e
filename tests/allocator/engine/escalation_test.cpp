// How a request that finds no free block gets its memory, and at what cost.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "allocator/base/work_counters.hpp"
#include "allocator/engine/engine.hpp"

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class EscalationTest : public testing::AllocatorTest {
 protected:
  // Returns how often `work` takes the state lock.
  template <class Work>
  std::uint64_t lock_cycles(Work work) {
    const auto count = [this] { return HeapGuard(allocator->engine().state)->lock_cycles; };
    const std::uint64_t before = count();
    work();
    return count() - before - 1;  // the second count() takes the lock, too
  }
};

// Only one page of the budget is free, and this page is in another stream's pool.
TEST_F(EscalationTest, ASmallObjectTakesAPageOfAnotherStreamBeforeAnythingIsReleased) {
  Configuration configuration = without_thread_caches();
  configuration.budget_bytes = 4 * kMiB;
  start(configuration);
  char* live = device(2 * kMiB, stream(1));
  char* freed = device(2 * kMiB, stream(1));
  EXPECT_EQ(allocator->free(freed), FreeResult::kFreed);
  machine->waits.clear();
  char* small = device(512, stream(2));
  EXPECT_EQ(allocator->find(small)->stream, stream(2));
  EXPECT_GE(small, std::min(live, freed));
  EXPECT_LT(small, std::max(live, freed) + 2 * kMiB);
  EXPECT_EQ(machine->waits, std::vector<std::string>{"host waits for device 0"});
  EXPECT_EQ(allocator->statistics().pressure_rounds, 0u);
  allocator->inspection().check_invariants();
}

TEST_F(EscalationTest, AMissOfThreeMebibytesTakesTheStateLockThreeTimesAndForANewSpanFour) {
  device(3 * kMiB, stream(1));
  EXPECT_EQ(lock_cycles([&] { device(3 * kMiB, stream(1)); }), 3u) << "in a span that has room";
  std::uint64_t most = 0;
  while (machine->allocated_bytes < 2 * 32 * kMiB) {
    most = std::max(most, lock_cycles([&] { device(3 * kMiB, stream(1)); }));
  }
  EXPECT_EQ(most, 4u);
}

TEST_F(EscalationTest, AFreeAndAWarmMoveTakeTheStateLockOnce) {
  start(without_thread_caches());
  char* freed = device(3 * kMiB, stream(1));
  EXPECT_EQ(lock_cycles([&] { allocator->free(freed); }), 1u);
  char* moved = device(3 * kMiB, stream(1));
  MoveRequest to_host{Place::device(0), Place::host(), 0, stream(1)};
  to_host.wait = false;
  const MoveRequest to_device{Place::host(), Place::device(0), 0, stream(1)};
  const auto move = [&](const MoveRequest& request) {
    return lock_cycles([&] { ASSERT_NE(allocator->move(moved, request), nullptr); });
  };
  move(to_host);  // the first move prepares the counters of the host's pool
  move(to_device);
  EXPECT_EQ(move(to_host), 1u);
  EXPECT_EQ(move(to_device), 1u);
}

#ifndef NDEBUG

TEST_F(EscalationTest, AMissOfThreeMebibytesSearchesAtMostTwoPools) {
  device(3 * kMiB, stream(1));
  while (machine->allocated_bytes < 2 * 32 * kMiB) {
    work_counters = {};
    device(3 * kMiB, stream(1));
    // The first search misses. The second one comes after new pages have joined the free block
    // beside them.
    EXPECT_LE(work_counters.pool_searches, 2u);
  }
}

TEST_F(EscalationTest, AFreeOnAnotherThreadLooksTheBlockUpOnce) {
  std::vector<char*> blocks;
  for (std::size_t size_bytes : {std::size_t{512}, 64 * std::size_t{1024}, 3 * kMiB}) {
    blocks.push_back(device(size_bytes, stream(1)));
  }
  std::thread([&] {
    for (char* block : blocks) {
      work_counters = {};
      EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
      EXPECT_EQ(work_counters.look_ups, 1u);
    }
  }).join();
}

#endif

}  // namespace
}  // namespace uvm
