// How a request that finds nothing gets its memory, and with how much work.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "allocator/base/work_counters.hpp"

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class EscalationTest : public testing::AllocatorTest {};

// One page of the budget is left, and another stream has it free.
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

#ifndef NDEBUG

TEST_F(EscalationTest, AMissOfThreeMebibytesTakesTheStateLockAtMostFourTimes) {
  device(3 * kMiB, stream(1));
  work_counters = {};
  device(3 * kMiB, stream(1));
  EXPECT_LE(work_counters.state_cycles, 3u) << "in a span that has room";
  // The second one takes new pages that were joined with a free end of the pool.
  EXPECT_LE(work_counters.pool_searches, 2u);
  while (machine->allocated_bytes < 2 * 32 * kMiB) {
    work_counters = {};
    device(3 * kMiB, stream(1));
    EXPECT_LE(work_counters.state_cycles, 4u);
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
