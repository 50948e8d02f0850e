// Private pools for graphs and users, captures, and streams that are destroyed.
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class PrivatePoolTest : public testing::AllocatorTest {
 protected:
  void begin(std::uint64_t id, StreamHandle routed, bool capturing = false) {
    allocator->private_pools().begin(
        0, id, [routed](StreamHandle handle) { return handle == routed; }, capturing);
  }
};

TEST_F(PrivatePoolTest, WhatIsFreeInAPrivatePoolServesItAlone) {
  begin(7, stream(1));
  char* inside = device(4 * kMiB, stream(1));
  char* small = device(512, stream(1));
  char* other_stream = device(4 * kMiB, stream(2));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  allocator->free(inside);
  allocator->free(small);
  allocator->free(other_stream);
  EXPECT_NE(device(4 * kMiB, stream(1)), inside);
  EXPECT_NE(device(512, stream(1)), small);
  EXPECT_EQ(device(4 * kMiB, stream(2)), other_stream) << "it was not routed to the pool";
  begin(7, stream(1));
  EXPECT_EQ(device(4 * kMiB, stream(1)), inside);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, ItsMemoryStaysUntilItsLastUserReleasesIt) {
  begin(7, stream(1));
  allocator->free(device(8 * kMiB, stream(1)));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  begin(7, stream(1));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 8 * kMiB);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 8 * kMiB) << "another user is left";
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
  EXPECT_FALSE(allocator->private_pools().release(0, 7));
}

TEST_F(PrivatePoolTest, WhatAPoolHasHeldIsListedByClassUntilItIsReset) {
  begin(7, stream(1));
  char* large = device(8 * kMiB, stream(1));
  device(20000, stream(1));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  auto of_pool = [&] { return allocator->statistics().private_pools.at(0); };
  EXPECT_EQ(of_pool().id, 7u);
  EXPECT_EQ(of_pool().device, 0);
  EXPECT_EQ(of_pool().reserved_bytes[0].current, 0u) << "no segments of small objects";
  EXPECT_EQ(of_pool().reserved_bytes[1].current, 10 * kMiB);
  EXPECT_EQ(of_pool().reserved_bytes[2].current, 10 * kMiB);
  allocator->free(large);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->release_cached();
  EXPECT_EQ(of_pool().reserved_bytes[2].current, 2 * kMiB);
  EXPECT_EQ(of_pool().reserved_bytes[2].peak, 10 * kMiB);
  EXPECT_EQ(of_pool().reserved_bytes[2].decreased, 8 * kMiB);
  allocator->reset_peaks(Facade::kDevice, 0);
  EXPECT_EQ(of_pool().reserved_bytes[2].peak, 2 * kMiB);
}

TEST_F(PrivatePoolTest, APoolThatIsGoneIsForgottenWhenItsFiguresAreReset) {
  begin(7, stream(1));
  allocator->free(device(8 * kMiB, stream(1)));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->release_cached();
  allocator->reset_totals(Facade::kDevice, 0);
  EXPECT_EQ(allocator->statistics().private_pools.size(), 1u) << "its peak is still listed";
  allocator->reset_peaks(Facade::kDevice, 0);
  EXPECT_TRUE(allocator->statistics().private_pools.empty());
}

TEST_F(PrivatePoolTest, TheMachineIsNotCalledDuringACaptureAndFencesFollowIt) {
  char* before = device(4 * kMiB, stream(1));
  machine->busy = {stream(2)};
  begin(7, stream(1), true);
  auto calls = allocator->inspection().runtime_calls();
  allocator->record_use(before, 0, stream(2));
  allocator->free(before);
  EXPECT_EQ(allocator->inspection().runtime_calls(), calls)
      << "no event was recorded on a captured stream";
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_EQ(allocator->statistics().fences, 1u);
  EXPECT_NE(device(4 * kMiB, stream(1)), before) << "its other stream is not through";
  machine->finish(stream(2));
  EXPECT_EQ(device(4 * kMiB, stream(1)), before);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
}

TEST_F(PrivatePoolTest, MemoryOfACaptureCountsAsExportedAsLongAsItsPoolHasUsers) {
  begin(7, stream(1), true);
  char* captured = device(4 * kMiB, stream(1));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  allocator->free(captured);
  begin(7, stream(1));
  EXPECT_EQ(device(4 * kMiB, stream(1)), captured);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_TRUE(allocator->find(captured)->exported) << "a replay writes to it";
  begin(8, stream(1));
  char* users = device(4 * kMiB, stream(1));
  EXPECT_TRUE(allocator->private_pools().end(0, 8));
  EXPECT_FALSE(allocator->find(users)->exported);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  EXPECT_FALSE(allocator->find(captured)->exported);
}

TEST_F(PrivatePoolTest, OutOfMemoryDuringACaptureWaitsForNothing) {
  begin(7, stream(1), true);
  machine->busy = {stream(1), stream(2)};
  EXPECT_THROW(device(512 * kMiB, stream(1)), OutOfMemoryError);
  EXPECT_EQ(machine->busy.size(), 2u) << "no device was waited for";
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, OfSeveralThatAreOpenTheInnermostServes) {
  allocator->private_pools().retain(0, 7);  // pool 7 is older and is opened inside pool 8
  begin(8, stream(1));
  begin(7, stream(1));
  EXPECT_EQ(allocator->find(device(kMiB, stream(1)))->private_pool, 7u);
  begin(8, stream(2));
  EXPECT_EQ(allocator->find(device(kMiB, stream(1)))->private_pool, 7u) << "of another stream";
  begin(8, stream(1));
  EXPECT_EQ(allocator->find(device(kMiB, stream(1)))->private_pool, 8u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(allocator->private_pools().end(0, 8));
  EXPECT_EQ(allocator->find(device(kMiB, stream(1)))->private_pool, 7u);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, AThreadThatNeverUsedAPoolMayRestoreIt) {
  begin(7, stream(1));
  char* block = device(4 * kMiB, stream(1));
  const auto wanted = allocator->private_pools().blocks(0, 7);
  allocator->free(block);
  std::thread([&] { allocator->private_pools().restore(0, 7, wanted); }).join();
  EXPECT_TRUE(allocator->find(block)->live);
  EXPECT_EQ(allocator->statistics().live_bytes.current, 4 * kMiB);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, ForAHandleThatIsUsedAgainTheDeviceIsWaitedForAtOnce) {
  begin(7, stream(1));
  char* block = device(4 * kMiB, stream(1));
  allocator->free(block);
  machine->busy = {stream(1)};
  allocator->streams().forget(0, stream(1));
  EXPECT_TRUE(machine->busy.empty());
  EXPECT_EQ(device(4 * kMiB, stream(1)), block) << "it stays the pool's";
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, WhereTheDeviceCannotBeWaitedForTheNextStreamOfTheHandleGetsOtherMemory) {
  begin(7, stream(1));
  char* block = device(4 * kMiB, stream(1));
  char* live = device(4 * kMiB, stream(1));
  allocator->free(block);
  machine->busy = {stream(1)};
  machine->capturing = {stream(9)};
  allocator->streams().forget(0, stream(1));
  const StreamHandle gone = machine->retire(stream(1));
  EXPECT_NE(device(4 * kMiB, stream(1)), block);
  machine->capturing.clear();
  EXPECT_TRUE(machine->busy.contains(gone));
  allocator->streams().wait_for_uses(live);
  EXPECT_TRUE(machine->busy.empty()) << "what the stream that is gone does on its block";
  machine->busy = {gone};
  allocator->free(live);
  EXPECT_NE(device(4 * kMiB, stream(1)), live);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->release_cached();
  EXPECT_TRUE(machine->busy.empty());
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 8 * kMiB) << "two blocks are live";
}

TEST_F(PrivatePoolTest, UnderPressureItGetsPagesOfItsOwnNotAnotherPoolsBlock) {
  Configuration configuration = small_configuration();
  configuration.budget_bytes = 8 * kMiB;
  configuration.span_bytes = 8 * kMiB;
  start(configuration);
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(device(kMiB - 4096, stream(1)));
  for (char* block : blocks) allocator->free(block);
  begin(7, stream(1));
  char* inside = device(300'000, stream(1));
  EXPECT_EQ(allocator->private_pools().blocks(0, 7).size(), 1u);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  allocator->free(inside);
  // The other pool takes all remaining memory, but nothing of the private block's page.
  std::vector<char*> outside;
  for (int i = 0; i < 6; ++i) outside.push_back(device(kMiB - 4096, stream(1)));
  EXPECT_THROW(device(kMiB - 4096, stream(1)), OutOfMemoryError);
  auto page_of = [](const char* address) {
    return reinterpret_cast<std::uintptr_t>(address) / kPageBytes;
  };
  for (const char* block : outside) EXPECT_NE(page_of(block), page_of(inside));
  std::size_t private_bytes = 0;
  for (const auto& segment : allocator->inspection().segments()) {
    EXPECT_EQ(segment.size_bytes % kPageBytes, 0u);
    if (segment.private_pool == 7) private_bytes += segment.size_bytes;
  }
  EXPECT_EQ(private_bytes, kPageBytes);
}

TEST_F(PrivatePoolTest, ThousandsOfReleasedPoolsLeaveNothingBehind) {
  auto capture_and_release = [&](std::uint64_t id) {
    begin(id, stream(1), true);
    char* page = device(4 * kMiB, stream(1));
    char* packed = device(20000, stream(1));
    EXPECT_TRUE(allocator->private_pools().end(0, id));
    allocator->free(page);
    allocator->free(packed);
    EXPECT_TRUE(allocator->private_pools().release(0, id));
    if (id % 4 == 0) allocator->release_cached();
  };
  auto many = [&](std::uint64_t from) {
    for (std::uint64_t id = from; id < from + 2000; ++id) capture_and_release(id);
  };
  many(1);
  const Statistics before = allocator->statistics();
  many(2001);
  const Statistics after = allocator->statistics();
  EXPECT_EQ(after.metadata_bytes, before.metadata_bytes);
  EXPECT_EQ(after.streams.size(), before.streams.size()) << "the pools have their old indices";
  EXPECT_LE(after.streams.size(), 5u) << "four at a time, and one of the stream itself";
  EXPECT_EQ(after.private_pools.size(), policy::kListedEndedPools);
  EXPECT_EQ(after.private_pools.back().id, 4000u) << "the last ones are listed";
  std::uint64_t allocations = 0;
  for (const StreamStatistics& one : after.streams) {
    allocations += one.allocations;
    EXPECT_EQ(one.live_bytes, 0);
    EXPECT_LE(one.peak_bytes, static_cast<std::int64_t>(5 * kMiB));
  }
  EXPECT_EQ(allocations, 8000u) << "counts outlive the pools";
  allocator->inspection().check_invariants();
}

TEST_F(PrivatePoolTest, UnderABudgetReleasedPoolsGiveTheirIndexBackAtOnce) {
  Configuration configuration = small_configuration();
  configuration.budget_bytes = 32 * kMiB;
  configuration.span_bytes = 8 * kMiB;
  start(configuration);
  for (std::uint64_t id = 1; id <= 2000; ++id) {
    begin(id, stream(1));
    allocator->free(device(4 * kMiB, stream(1)));
    EXPECT_TRUE(allocator->private_pools().end(0, id));
    EXPECT_TRUE(allocator->private_pools().release(0, id));
  }
  // At most eight pools hold memory, one pool requests memory, and one is the stream's own.
  EXPECT_LE(allocator->statistics().streams.size(), 10u);
}

TEST_F(PrivatePoolTest, AStreamKeepsItsPlaceAmongTheDevicesStreamsAfterItsPrivatePool) {
  begin(7, stream(1));
  allocator->free(device(4 * kMiB, stream(1)));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->streams().of(0), (std::vector<DeviceStream>{{0, stream(1), 0}}));
  EXPECT_EQ(allocator->statistics().streams.size(), 1u);
  char* block = device(4 * kMiB, stream(1));
  EXPECT_EQ(allocator->find(block)->private_pool, 0u);
  allocator->free(block);
  EXPECT_EQ(device(4 * kMiB, stream(1)), block) << "its pools are ordinary ones now";
}

TEST_F(PrivatePoolTest, APoolWithALiveBlockKeepsItsIndex) {
  begin(7, stream(1));
  char* live = device(4 * kMiB, stream(1));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->find(live)->private_pool, 7u);
  allocator->free(live);
  allocator->release_cached();
  allocator->inspection().check_invariants();
  EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
}

TEST_F(PrivatePoolTest, ARequestKeepsTheIndexOfAPoolThatIsReleasedMeanwhile) {
  std::vector<char*> all;
  try {
    for (;;) all.push_back(device(4 * kMiB, stream(3)));
  } catch (const OutOfMemoryError&) {
  }
  allocator->limits().add_pressure_callback([&] {
    if (all.empty()) return false;
    for (char* block : std::exchange(all, {})) allocator->free(block);
    EXPECT_TRUE(allocator->private_pools().release(0, 7));
    allocator->release_cached();
    return true;
  });
  begin(7, stream(1));
  char* block = device(4 * kMiB, stream(1));
  EXPECT_TRUE(all.empty()) << "the pool was released during the request";
  EXPECT_EQ(allocator->find(block)->private_pool, 7u);
  allocator->free(block);
  allocator->release_cached();
  EXPECT_EQ(allocator->find(device(4 * kMiB, stream(1)))->private_pool, 0u);
  allocator->inspection().check_invariants();
}

TEST_F(PrivatePoolTest, WhatDoesNotExistIsRefused) {
  EXPECT_THROW(begin(0, stream(1)), std::invalid_argument);
  EXPECT_THROW(allocator->private_pools().begin(
                   3, 7, [](StreamHandle) { return true; }, false),
               std::invalid_argument);
  EXPECT_FALSE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, AStreamWithAHandleThatWasUsedBeforeGetsMemoryOfItsOwn) {
  char* live = device(4 * kMiB, stream(1));
  char* cached = device(8192, stream(1));
  char* small = device(512, stream(1));
  allocator->free(cached);
  allocator->free(small);
  machine->failures["is_capturing"] = 1;  // the stream's last work is unknown
  allocator->streams().forget(0, stream(1));
  EXPECT_NE(device(8192, stream(1)), cached) << "the old stream's work may not be over";
  EXPECT_NE(device(512, stream(1)), small);
  allocator->free(live);
  EXPECT_NE(device(4 * kMiB, stream(1)), live);
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().live_bytes.current, 4 * kMiB + 8192 + 512);
}

TEST_F(PrivatePoolTest, BlocksThatAreNoneAreNotRestored) {
  begin(7, stream(1));
  char* block = device(64 * 1024, stream(1));
  allocator->private_pools().end(0, 7);
  allocator->free(block);
  allocator->private_pools().release(0, 8);
  for (std::size_t size_bytes : {std::size_t{0}, std::size_t{100000}, SIZE_MAX, SIZE_MAX - 511}) {
    EXPECT_THROW(allocator->private_pools().restore(0, 7, {{block, size_bytes, 1}}),
                 std::invalid_argument)
        << size_bytes;
    allocator->inspection().check_invariants();
  }
  EXPECT_THROW(allocator->private_pools().restore(0, 7, {{block + 8, 64 * 1024, 1}}),
               std::invalid_argument);
  allocator->private_pools().restore(0, 7, {{block, 64 * 1024, 1}});
  EXPECT_TRUE(allocator->find(block)->live);
}

TEST_F(PrivatePoolTest, AUserMoreKeepsAPoolThatIsNotOpen) {
  allocator->private_pools().retain(0, 7);
  EXPECT_EQ(allocator->private_pools().users(0, 7), 1u);
  begin(7, stream(1));
  EXPECT_EQ(allocator->private_pools().users(0, 7), 2u);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  EXPECT_EQ(allocator->private_pools().users(0, 7), 1u);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  EXPECT_EQ(allocator->private_pools().users(0, 7), 0u);
  EXPECT_THROW(allocator->private_pools().retain(0, 0), std::invalid_argument);
}

TEST_F(PrivatePoolTest, ACallGivesBackTheMemoryOfOneReleasedPoolAlone) {
  begin(7, stream(1));
  allocator->free(device(8 * kMiB, stream(1)));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  char* cached = device(4 * kMiB, stream(1));
  allocator->free(cached);
  allocator->private_pools().release_cached(0, 7);
  EXPECT_EQ(allocator->statistics().classes[2][0][kSizeClasses].reserved_bytes.current, 12 * kMiB)
      << "it has a user";
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  allocator->private_pools().release_cached(0, 7);
  EXPECT_EQ(allocator->statistics().classes[2][0][kSizeClasses].reserved_bytes.current, 4 * kMiB);
  EXPECT_EQ(device(4 * kMiB, stream(1)), cached);
}

TEST_F(PrivatePoolTest, BlocksWithWholePagesShareNone) {
  EXPECT_FALSE(allocator->private_pools().give_whole_pages(0, 7)) << "there is no such pool";
  begin(7, stream(1));
  EXPECT_TRUE(allocator->private_pools().give_whole_pages(0, 7));
  char* first = device(512, stream(1));
  char* second = device(3 * kMiB, stream(1));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % (2 * kMiB), 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % (2 * kMiB), 0u);
  EXPECT_EQ(allocator->find(first)->size_bytes, 2 * kMiB);
  EXPECT_EQ(allocator->find(first)->requested_bytes, 512u);
  EXPECT_EQ(allocator->find(second)->size_bytes, 4 * kMiB);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, ARestoredPoolHasItsBlocksAtTheirAddressesAndNoOthers) {
  begin(7, stream(1));
  char* small = device(700, stream(1));
  char* kept = device(3 * kMiB, stream(1));
  char* middle = device(100 * 1024, stream(1));
  const auto checkpoint = allocator->private_pools().blocks(0, 7);
  ASSERT_EQ(checkpoint.size(), 3u);
  allocator->free(small);
  allocator->free(middle);
  char* later = device(160 * 1024, stream(1));
  char* more = device(9 * kMiB, stream(1));
  kept[0] = 'k';
  allocator->private_pools().restore(0, 7, checkpoint);
  EXPECT_EQ(kept[0], 'k');
  const auto now = allocator->private_pools().blocks(0, 7);
  ASSERT_EQ(now.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(now[i].address, checkpoint[i].address);
    EXPECT_EQ(now[i].size_bytes, checkpoint[i].size_bytes);
    EXPECT_EQ(now[i].requested_bytes, checkpoint[i].requested_bytes);
  }
  EXPECT_FALSE(allocator->find(more)->live);
  EXPECT_TRUE(allocator->find(middle)->live);
  EXPECT_EQ(allocator->statistics().live_bytes.current,
            checkpoint[0].size_bytes + checkpoint[1].size_bytes + checkpoint[2].size_bytes);
  (void)later;
  allocator->inspection().check_invariants();
  allocator->private_pools().restore(0, 7, {});
  EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
}

TEST_F(PrivatePoolTest, WhatIsNotThePoolsCannotBeRestored) {
  char* elsewhere = device(3 * kMiB, stream(1));
  const auto size_bytes = allocator->find(elsewhere)->size_bytes;
  allocator->free(elsewhere);
  begin(7, stream(1), true);
  EXPECT_THROW(allocator->private_pools().restore(0, 7, {}), std::logic_error) << "captures";
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_THROW(allocator->private_pools().restore(0, 7, {{elsewhere, size_bytes, 3 * kMiB}}),
               std::invalid_argument);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
}

TEST_F(PrivatePoolTest, WhatACaptureGivesBackCountsAsActiveUntilItsFencesAreOver) {
  char* before = device(4 * kMiB, stream(1));
  auto figures = [&] { return allocator->statistics().classes[2][0][kSizeClasses]; };
  machine->busy = {stream(2)};
  begin(7, stream(1), true);
  allocator->record_use(before, 0, stream(2));
  EXPECT_TRUE(allocator->find(before)->waits_when_freed);
  allocator->free(before);
  EXPECT_EQ(figures().allocated_bytes.current, 0u);
  EXPECT_EQ(figures().active_bytes.current, 4 * kMiB);
  EXPECT_EQ(figures().active_requested_bytes.current, 4 * kMiB);
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_EQ(figures().active_bytes.current, 4 * kMiB);
  machine->finish(stream(2));
  allocator->release_cached();
  EXPECT_EQ(figures().active_bytes.current, 0u);
  EXPECT_EQ(figures().active_requested_bytes.current, 0u);
  EXPECT_EQ(figures().active_bytes.increased, figures().active_bytes.decreased);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
}

}  // namespace
}  // namespace uvm
