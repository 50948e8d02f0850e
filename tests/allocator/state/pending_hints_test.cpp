// Planned hints are sent, and the ledger agrees with the driver, whichever request took a page,
// whatever is captured, and whichever hint fails.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/waiting_thread.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class PendingHintsTest : public testing::AllocatorTest {
 protected:
  void capture(std::uint64_t id) {
    allocator->private_pools().begin(
        0, id, [](StreamHandle handle) { return handle == stream(9); }, true);
  }
  void end_capture(std::uint64_t id) {
    EXPECT_TRUE(allocator->private_pools().end(0, id));
    EXPECT_TRUE(allocator->private_pools().release(0, id));
  }
  char* small(int index, StreamHandle on) {
    return static_cast<char*>(allocator->allocate(Facade::kDevice, index, 512, on));
  }
  static Hint prefetch(char* page, int index) {
    return {HintKind::kPrefetch, {}, Place::device(index), page, kPageBytes};
  }
  // Returns the requested prefetches, each with the device of the calling context.
  std::vector<std::pair<int, Hint>> prefetches() const {
    std::vector<std::pair<int, Hint>> found;
    std::copy_if(machine->calls_for_hints.begin(), machine->calls_for_hints.end(),
                 std::back_inserter(found),
                 [](const auto& call) { return call.second.kind == HintKind::kPrefetch; });
    return found;
  }
  using Sent = std::vector<std::pair<int, Hint>>;
};

TEST_F(PendingHintsTest, AfterACaptureThePagesOfItsSmallObjectsArePrefetched) {
  capture(7);
  char* block = small(0, stream(1));
  EXPECT_EQ(prefetches(), Sent{});
  end_capture(7);
  EXPECT_EQ(prefetches(), (Sent{{0, prefetch(block, 0)}}));
}

TEST_F(PendingHintsTest, BeforePagesAreGivenBackTheirHintsAreSent) {
  capture(7);
  char* block = small(0, stream(1));
  char* page = block;
  EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  end_capture(7);
  machine->calls_for_hints.clear();
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u);
  small(0, stream(1));
  EXPECT_EQ(prefetches(), (Sent{{0, prefetch(page, 0)}})) << "once, for the new span";
}

TEST_F(PendingHintsTest, PagesGoBackOnlyWhenAnotherThreadHasSentTheirHints) {
  capture(7);
  char* first = small(0, stream(1));
  char* second = small(0, stream(2));
  machine->capturing.clear();
  std::atomic<bool> is_sending = false;
  std::atomic<bool> goes_on = false;
  machine->before_prefetch = [&] {
    is_sending = true;
    while (!goes_on) std::this_thread::yield();
  };
  std::size_t prefetches_before_free = 0;
  machine->before_free = [&] { prefetches_before_free = prefetches().size(); };
  std::thread sending([&] { end_capture(7); });
  while (!is_sending) std::this_thread::yield();
  for (char* block : {first, second}) EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
  testing::WaitingThread releasing([&] { allocator->release_cached(); });
  EXPECT_TRUE(releasing.waits());
  goes_on = true;
  sending.join();
  releasing.join();
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u);
  EXPECT_EQ(prefetches_before_free, 2u);
}

TEST_F(PendingHintsTest, EachPageIsPrefetchedByTheLaneOfItsOwnDevice) {
  start(small_configuration(), 2);
  capture(7);
  char* of_zero = small(0, stream(1));
  char* of_one = small(1, stream(2));
  end_capture(7);
  EXPECT_EQ(prefetches(), (Sent{{0, prefetch(of_zero, 0)}, {1, prefetch(of_one, 1)}}));
}

TEST_F(PendingHintsTest, OnlyTheStreamThatUsesAPageWaitsForItsPrefetch) {
  small(0, stream(1));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream 1 waits for stream lane"}));
  machine->waits.clear();
  capture(7);
  small(0, stream(2));
  end_capture(7);
  EXPECT_TRUE(machine->waits.empty());
}

TEST_F(PendingHintsTest, AdviceThatFailedIsGivenAgain) {
  char* block = host(4 * kMiB);
  machine->hints.clear();
  machine->failures["advise"] = 1;
  to_device(block);
  EXPECT_EQ(count_hints(HintKind::kAdvise), 0u);
  to_device(block);
  EXPECT_EQ(machine->hints.back(), (Hint{HintKind::kAdvise, Advice::kSetPreferredLocation,
                                         Place::device(0), block, 4 * kMiB}));
}

TEST_F(PendingHintsTest, AdviceThatFailedForASpanIsGivenToItsBlocks) {
  machine->failures["advise"] = 1;  // the preferred location of the span
  char* block = host(4 * kMiB);
  machine->hints.clear();
  to_host(block);
  const Hint owning_pool{HintKind::kAdvise, Advice::kSetPreferredLocation, Place::host(), block,
                         4 * kMiB};
  EXPECT_NE(std::find(machine->hints.begin(), machine->hints.end(), owning_pool),
            machine->hints.end());
}

TEST_F(PendingHintsTest, MarkingABlockReadMostlyIsTriedAgainWhereItFailed) {
  char* block = host(4 * kMiB);
  machine->hints.clear();
  machine->failures["advise"] = 1;
  for (int i = 0; i < 3; ++i) allocator->advise(block, {.read_mostly = true});
  EXPECT_EQ(machine->hints, (std::vector<Hint>{{HintKind::kAdvise, Advice::kSetReadMostly,
                                                Place::host(), block, 4 * kMiB}}));
}

TEST_F(PendingHintsTest, MemoryGoesBackAfterThePrefetchesOfItThatAThreadAsksFor) {
  DeviceCapabilities blocking = machine->capabilities;
  blocking.prefetch_blocks = true;
  start(without_thread_caches(), 1, blocking);
  std::atomic<bool> may_prefetch = false;
  machine->before_prefetch = [&] {
    while (!may_prefetch) std::this_thread::yield();
  };
  std::size_t prefetches_before_free = 0;
  machine->before_free = [&] { prefetches_before_free = prefetches().size(); };
  allocator->free(device(3 * kMiB, stream(1)));
  testing::WaitingThread release([&] { allocator->release_cached(); });
  EXPECT_TRUE(release.waits());
  may_prefetch = true;
  release.join();
  EXPECT_EQ(machine->allocated_bytes, 0u);
  EXPECT_EQ(prefetches_before_free, 1u);
}

}  // namespace
}  // namespace uvm
