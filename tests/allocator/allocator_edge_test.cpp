// Rare states: small blocks behind fences, pages with changed advice, statistics that outlive
// their thread, an allocator that is destroyed while its threads end.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <optional>
#include <thread>

#include "allocator/reclaim/decay.hpp"
#include "tools/trace/trace_reader.hpp"

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/waiting_thread.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

using EdgeTest = testing::AllocatorTest;

TEST_F(EdgeTest, SmallBlocksAreUsedAgainOnceTheirStreamsAreThrough) {
  for (int round = 0; round < 2000; ++round) {
    void* block = allocator->allocate(Facade::kPinned, 0, 4096);
    allocator->record_use(block, 0, stream(1));
    allocator->free(block);
  }
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 2 * kMiB);
}

TEST_F(EdgeTest, SmallBlocksBehindFencesAreWaitedForBeforeTheErrorAlsoWhereTheirPageStays) {
  Configuration configuration = without_thread_caches();
  configuration.budget_bytes = 2 * kMiB;
  start(configuration);
  std::vector<char*> blocks;
  for (int i = 0; i < 512; ++i) blocks.push_back(device(4096, stream(1)));
  machine->busy = {stream(2)};
  allocator->record_use(blocks[7], 0, stream(2));
  allocator->free(blocks[7]);
  EXPECT_EQ(device(4096, stream(1)), blocks[7]);
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(EdgeTest, TotalsOfActiveBlocksStartFromZeroAlsoWhileSomeWaitBehindFences) {
  machine->busy = {stream(2)};
  char* block = device(4 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  allocator->free(block);
  allocator->reset_totals(Facade::kDevice, 0);
  Gauge active = allocator->statistics().classes[2][0][1].active_blocks;
  EXPECT_EQ(active.current, 1u);
  EXPECT_EQ(active.decreased, 0u);
  machine->finish(stream(2));
  device(4 * kMiB, stream(1));
  active = allocator->statistics().classes[2][0][1].active_blocks;
  EXPECT_EQ(active.increased, 1u);
  EXPECT_EQ(active.decreased, 1u);
}

TEST_F(EdgeTest, PeaksOfActiveBlocksStartAgainFromWhatIsActive) {
  machine->busy = {stream(2)};
  char* block = device(4 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  allocator->free(block);
  machine->finish(stream(2));
  device(4 * kMiB, stream(1));
  allocator->reset_peaks(Facade::kDevice, 0);
  const ClassStatistics now = allocator->statistics().classes[2][0][1];
  EXPECT_EQ(now.active_blocks.peak, 1u);
  EXPECT_EQ(now.active_bytes.peak, 4 * kMiB);
  EXPECT_EQ(now.active_requested_bytes.peak, 4 * kMiB);
}

TEST_F(EdgeTest, AStreamsFiguresOutliveTheThreadsThatMadeThem) {
  char* block = nullptr;
  std::thread([&] { block = device(8192, stream(1)); }).join();
  auto figures = [&] { return allocator->statistics().streams.at(0); };
  EXPECT_EQ(figures().live_bytes, 8192);
  EXPECT_EQ(figures().allocations, 1u);
  EXPECT_EQ(figures().allocated_bytes, 8192u);
  std::thread([&] { allocator->free(block); }).join();
  EXPECT_EQ(figures().live_bytes, 0);
  EXPECT_EQ(figures().peak_bytes, 8192);
}

TEST_F(EdgeTest, AThreadMayEndWhileTheAllocatorGoes) {
  std::atomic<bool> over = false;
  std::atomic<bool> cached = false;
  std::thread late([&] {
    allocator->free(device(100, stream(1)));
    cached = true;
    while (!over) std::this_thread::yield();
  });
  while (!cached) std::this_thread::yield();
  // Runs during the last step of the allocator's destructor.
  machine->before_free = [&] {
    over = true;
    late.join();
  };
  allocator.reset();
  EXPECT_TRUE(over);
}

TEST_F(EdgeTest, ABlockMovedToTheHostWithoutAWaitIsNotUsedThereBeforeItsProducerIsThrough) {
  char* block = host(4 * kMiB);
  machine->busy = {stream(3)};
  to_host(block, stream(3), false);
  allocator->free(block);
  EXPECT_NE(host(4 * kMiB), block) << "stream 3 may still write to it";
  machine->finish(stream(3));
  EXPECT_EQ(host(4 * kMiB), block);
}

TEST_F(EdgeTest, PagesOfSmallObjectsAreSegmentsAlsoWhenNoObjectIsOut) {
  std::thread([&] { allocator->free(device(4096, stream(1))); }).join();
  std::vector<SegmentDescription> segments = allocator->inspection().segments();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].size_bytes, 256 * 1024u);
  EXPECT_TRUE(segments[0].is_of_small_objects);
  EXPECT_EQ(segments[0].stream, stream(1));
  ASSERT_EQ(segments[0].blocks.size(), 1u);
  EXPECT_EQ(segments[0].blocks[0].size_bytes, 256 * 1024u);
  EXPECT_EQ(segments[0].blocks[0].state, BlockState::kFree);
  EXPECT_EQ(static_cast<char*>(segments[0].base) + 256 * 1024, segments[1].base);
  EXPECT_EQ(segments[1].size_bytes, 2 * kMiB - 256 * 1024);
  EXPECT_FALSE(segments[1].is_of_small_objects);
}

TEST_F(EdgeTest, ASharedBlockBehindAFullSegmentOfSmallObjectsIsNotPartOfIt) {
  std::vector<char*> small;
  for (int i = 0; i < 512; ++i) small.push_back(device(512));
  char* behind = device(kMiB);
  ASSERT_EQ(behind, *std::max_element(small.begin(), small.end()) + 512);
  std::vector<SegmentDescription> segments = allocator->inspection().segments();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].blocks.size(), 512u);
  EXPECT_EQ(segments[1].base, behind);
  EXPECT_EQ(segments[1].blocks.size(), 2u);
}

TEST_F(EdgeTest, ASecondFreeIsOneAlsoAfterTheBlockWasJoinedWithTheOneBefore) {
  start(without_thread_caches());
  char* first = device(8192);
  char* second = device(8192);
  allocator->free(first);
  allocator->free(second);
  EXPECT_EQ(allocator->free(second), FreeResult::kDouble);
}

// One thread queries fences while another thread is out of memory.
TEST_F(EdgeTest, BlocksWhoseFencesAnotherThreadLooksAtAreNotMissedUnderPressure) {
  Configuration configuration = without_thread_caches();
  configuration.budget_bytes = 8 * kMiB;
  start(configuration);
  char* block = device(6 * kMiB, stream(1));
  machine->busy = {stream(2)};
  allocator->record_use(block, 0, stream(2));
  allocator->free(block);
  char* found = nullptr;
  std::optional<testing::WaitingThread> other;
  machine->before_query = [&] {
    other.emplace([&] { EXPECT_NO_THROW(found = device(6 * kMiB, stream(1))); });
    EXPECT_TRUE(other->waits()) << "for the first thread's query";
  };
  device(2 * kMiB, stream(3));
  other->join();
  EXPECT_EQ(found, block);
}

TEST_F(EdgeTest, AForkedChildCanReadTheFiguresWhateverOtherThreadsDid) {
  std::atomic<bool> over = false;
  std::thread busy([&] {
    while (!over) allocator->free(device(512, stream(1)));
  });
  for (int round = 0; round < 20; ++round) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      allocator->statistics();
      allocator.reset();
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  over = true;
  busy.join();
}

// Tests a small object and a block of two pages.
TEST_F(EdgeTest, APageOnAnotherDevicesSpanWaitsForTheDeviceThatUsedIt) {
  for (std::size_t size_bytes : {std::size_t{512}, 4 * kMiB}) {
    SCOPED_TRACE(size_bytes);
    start(small_configuration(), 2);
    machine->device_of = {{stream(5), 1}};
    char* kept = host(4 * kMiB);
    machine->failures["allocate_managed"] = 100;
    void* block = allocator->allocate(Facade::kDevice, 1, size_bytes, stream(5));
    ASSERT_EQ(block, kept + 4 * kMiB) << "on the host's span, which is device 0's";
    machine->busy = {stream(5)};
    allocator->free(block);
    allocator->release_cached();
    EXPECT_TRUE(machine->busy.empty());
  }
}

TEST_F(EdgeTest, ABlockOfAForgottenStreamIsNotKeptForAnotherStreamOfTheSameHandle) {
  char* block = nullptr;
  std::thread([&] { block = device(8192, stream(1)); }).join();
  machine->failures["is_capturing"] = 1;  // the stream's last work is unknown
  allocator->streams().forget(0, stream(1));
  allocator->free(block);
  EXPECT_NE(device(8192, stream(1)), block);
  EXPECT_NE(device(8192, stream(1)), block) << "nor by the short way to the pool";
}

TEST_F(EdgeTest, TheNextStreamTakesTheMemoryOfOneThatIsGoneAndStartsAfterItsWork) {
  char* cached = device(8192, stream(1));
  char* small = device(512, stream(1));
  char* live = device(4 * kMiB, stream(1));
  allocator->free(cached);
  allocator->free(small);
  machine->busy = {stream(1)};
  allocator->streams().forget(0, stream(1));
  machine->waits.clear();
  EXPECT_EQ(device(8192, stream(2)), cached);
  EXPECT_EQ(machine->waits, std::vector<std::string>{"stream 2 waits for stream 1"});
  EXPECT_EQ(device(512, stream(2)), small);
  allocator->free(live);
  EXPECT_EQ(device(4 * kMiB, stream(2)), small + 256 * 1024) << "what is free before it as well";
  EXPECT_EQ(machine->waits.size(), 1u) << "once for all of it";
  allocator->free(cached);
  EXPECT_EQ(device(8192, stream(2)), cached) << "kept by the thread for the stream";
}

TEST_F(EdgeTest, AStreamThatIsCapturedTakesNoMemoryOfOneThatIsGone) {
  char* cached = device(8192, stream(1));
  allocator->free(cached);
  allocator->streams().forget(0, stream(1));
  machine->capturing = {stream(2)};
  EXPECT_NE(device(8192, stream(2)), cached);
  machine->capturing.clear();
  EXPECT_EQ(device(8192, stream(3)), cached) << "it is there for the next";
}

TEST_F(EdgeTest, StreamsThatComeAndGoTakeNoMoreMemoryThanOne) {
  std::size_t touched_bytes = 0;
  std::size_t metadata_bytes = 0;
  for (std::uintptr_t number = 1; number <= 5000; ++number) {
    char* large = device(8 * kMiB, stream(number));
    char* small = device(512, stream(number));
    allocator->free(large);
    allocator->free(small);
    allocator->streams().forget(0, stream(number));
    if (number != 10 && number != 5000) continue;
    const Statistics now = allocator->statistics();
    if (number == 10) {
      touched_bytes = now.touched_bytes.current;
      metadata_bytes = now.metadata_bytes;
    }
    EXPECT_EQ(now.touched_bytes.current, touched_bytes);
    EXPECT_EQ(now.metadata_bytes, metadata_bytes);
    EXPECT_EQ(now.streams.size(), 1u);
  }
}

// ---- devices and alignments that do not exist

TEST_F(EdgeTest, AUseOrAMoveOfADeviceThatDoesNotExistIsRefusedAndChangesNothing) {
  char* block = host(4 * kMiB);
  for (int unknown : {-1, 1, 99}) {
    EXPECT_THROW(allocator->record_use(block, unknown, stream(1)), std::out_of_range);
    EXPECT_THROW(allocator->streams().record_use_of_all(block, unknown), std::out_of_range);
    EXPECT_THROW(allocator->streams().forget(unknown, stream(1)), std::out_of_range);
    EXPECT_THROW(allocator->limits().set_device_limit(unknown, 1), std::out_of_range);
    const Place nowhere = Place::device(unknown);
    EXPECT_THROW(allocator->move(block, {Place::host(), nowhere, 0, stream(1)}), std::out_of_range);
    EXPECT_THROW(allocator->move(block, {nowhere, Place::host(), 0, stream(1)}), std::out_of_range);
    EXPECT_THROW(allocator->move(block, {Place::host(), Place::device(0), unknown, stream(1)}),
                 std::out_of_range);
    EXPECT_THROW(allocator->prefetch(block, kMiB, nowhere, 0, stream(1)), std::out_of_range);
    EXPECT_THROW(allocator->advise(block, {nowhere, Place::nowhere()}), std::out_of_range);
  }
  EXPECT_EQ(allocator->find(block)->references, 1u);
  EXPECT_EQ(allocator->statistics().moves.total(), 0u);
  EXPECT_FALSE(allocator->prefetch(block, SIZE_MAX, Place::device(0), 0, stream(1)));
  EXPECT_EQ(allocator->free(block), FreeResult::kFreed);
}

TEST_F(EdgeTest, PinnedBlocksBeginOnAPageOfTheHost) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t size_bytes : {4097, 4609, 65537, 100000, 5000, 12289}) {
    void* block = allocator->allocate(Facade::kPinned, 0, size_bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % page, 0u) << size_bytes;
    EXPECT_EQ(allocator->find(block)->requested_bytes, size_bytes);
    EXPECT_EQ(allocator->find(block)->size_bytes, (size_bytes + page - 1) / page * page);
  }
}

TEST_F(EdgeTest, AnAlignmentThatIsNoneIsRefused) {
  for (std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{1536}, 4 * kMiB}) {
    for (Facade facade : {Facade::kHost, Facade::kDevice}) {
      EXPECT_THROW(allocator->allocate_aligned(facade, 0, 100, alignment, nullptr),
                   std::invalid_argument)
          << alignment;
    }
  }
  EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
}

TEST_F(EdgeTest, WhatDecayLeavesBehindFencesStaysBehindThem) {
  Configuration configuration = without_thread_caches();
  configuration.decay_seconds = 8;
  start(configuration);
  std::vector<char*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(host(4 * kMiB));
    to_device(blocks.back(), stream(1));
  }
  allocator->free(device(512 * 1024, stream(2)));
  machine->busy = {stream(1)};
  for (char* block : blocks) allocator->free(block);
  // Later than the decay calls that allocations make.
  const Decay::Time begin = std::chrono::steady_clock::now() + std::chrono::hours(1);
  allocator->limits().decay(begin);
  allocator->limits().decay(begin + std::chrono::seconds(4));
  allocator->inspection().check_invariants();
  for (int i = 0; i < 4; ++i) {
    char* next = host(4 * kMiB);
    if (!machine->busy.contains(stream(1))) break;
    EXPECT_EQ(std::count(blocks.begin(), blocks.end(), next), 0) << "stream 1 may still read it";
  }
}

TEST_F(EdgeTest, APrivatePoolThatIsReleasedWhileItIsOpenEndsItsCapture) {
  allocator->private_pools().begin(
      0, 7, [](StreamHandle) { return true; }, true);
  char* block = device(4 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  allocator->free(block);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  EXPECT_FALSE(allocator->private_pools().end(0, 7));
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

TEST_F(EdgeTest, ASmallRequestOfACaptureTakesAPageOfAnotherFacadesSpan) {
  char* kept = host(4 * kMiB);
  machine->failures["allocate_managed"] = 100;
  allocator->private_pools().begin(
      0, 7, [](StreamHandle) { return true; }, true);
  EXPECT_EQ(device(512, stream(1)), kept + 4 * kMiB);
  allocator->private_pools().end(0, 7);
}

TEST_F(EdgeTest, FiguresOfADeviceThatDoesNotExistCannotBeReset) {
  EXPECT_THROW(allocator->reset_peaks(Facade::kDevice, 1), std::out_of_range);
  EXPECT_THROW(allocator->reset_totals(Facade::kHost, -1), std::out_of_range);
}

// ---- pages without a move

TEST_F(EdgeTest, APrefetchLeavesTheBlockWhereItIsInUse) {
  char* block = device(8 * kMiB, stream(1));
  machine->hints.clear();
  machine->waits.clear();
  EXPECT_TRUE(allocator->prefetch(block, 8 * kMiB, Place::host(), 0, stream(1)));
  EXPECT_EQ(machine->hints,
            (std::vector<Hint>{{HintKind::kPrefetch, {}, Place::host(), block, 8 * kMiB}}));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream lane waits for stream 1"}));
  EXPECT_EQ(allocator->find(block)->location, Place::device(0));
  EXPECT_EQ(allocator->inspection().residency(block, 8 * kMiB),
            (std::map<Place, std::size_t>{{Place::host(), 8 * kMiB}}));
  machine->waits.clear();
  EXPECT_TRUE(allocator->prefetch(block, 3 * kMiB, Place::device(0), 0, stream(1)));
  EXPECT_EQ(machine->waits, (std::vector<std::string>{"stream 1 waits for stream lane"}));
  EXPECT_EQ(allocator->inspection().residency(block, 100 * kMiB),
            (std::map<Place, std::size_t>{{Place::host(), 4 * kMiB}, {Place::device(0), 4 * kMiB}}))
      << "whole pages, and nothing beyond the block";
}

TEST_F(EdgeTest, APrefetchOfWhatIsNotOneLiveBlockIsRefused) {
  char* block = device(8 * kMiB, stream(1));
  machine->hints.clear();
  EXPECT_FALSE(allocator->prefetch(block + kMiB, 8 * kMiB, Place::host(), 0, stream(1)));
  EXPECT_FALSE(allocator->prefetch(block, 0, Place::host(), 0, stream(1)));
  int foreign = 0;
  EXPECT_FALSE(allocator->prefetch(&foreign, 4, Place::host(), 0, stream(1)));
  EXPECT_TRUE(allocator->inspection().residency(&foreign, 4).empty());
  allocator->free(block);
  EXPECT_FALSE(allocator->prefetch(block, 8 * kMiB, Place::host(), 0, stream(1)));
  EXPECT_TRUE(machine->hints.empty());
}

// ---- per-thread default streams: one handle names a different stream in each thread

TEST_F(EdgeTest, AThreadsDefaultStreamIsItsOwn) {
  char* mine = device(4 * kMiB, kPerThreadStream);
  char* theirs = nullptr;
  std::thread([&] {
    theirs = device(4 * kMiB, kPerThreadStream);
    allocator->free(theirs);
    EXPECT_EQ(device(4 * kMiB, kPerThreadStream), theirs);
    allocator->free(theirs);
  }).join();
  allocator->free(mine);
  EXPECT_EQ(device(4 * kMiB, kPerThreadStream), mine) << "and not what another thread's may use";
  EXPECT_NE(device(4 * kMiB, kPerThreadStream), theirs);
}

TEST_F(EdgeTest, AnotherThreadsBlockIsItsStreamsWhoeverFreesIt) {
  std::promise<char*> made;
  std::promise<void> over;
  std::thread other([&] {
    made.set_value(device(20000, kPerThreadStream));
    over.get_future().wait();
  });
  char* theirs = made.get_future().get();
  allocator->free(theirs);
  EXPECT_NE(device(20000, kPerThreadStream), theirs);
  over.set_value();
  other.join();
}

TEST_F(EdgeTest, WhatAnEndedThreadsStreamHadIsForTheNextThreads) {
  char* last = nullptr;
  for (int i = 0; i < 100; ++i) {
    std::thread([&] {
      machine->waits.clear();
      char* block = device(8 * kMiB, kPerThreadStream);
      device(100, kPerThreadStream);
      if (last != nullptr) {
        EXPECT_EQ(block, last);
        EXPECT_EQ(machine->waits, std::vector<std::string>{"stream 0 waits for stream 0"});
      }
      last = block;
      allocator->free(block);
    }).join();
  }
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 10 * kMiB);
  EXPECT_EQ(allocator->statistics().streams.size(), 1u);
}

TEST_F(EdgeTest, AUseByAnotherThreadsDefaultStreamIsWaitedForWithItsDevice) {
  char* block = device(4 * kMiB, stream(1));
  std::thread([&] { allocator->record_use(block, 0, kPerThreadStream); }).join();
  machine->busy = {kPerThreadStream};
  machine->waits.clear();
  allocator->free(block);
  EXPECT_EQ(machine->waits, std::vector<std::string>{"host waits for device 0"});
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
  machine->waits.clear();
  allocator->record_use(block, 0, kPerThreadStream);
  machine->busy = {kPerThreadStream};
  allocator->free(block);
  EXPECT_TRUE(machine->waits.empty()) << "the thread's own is fenced";
  EXPECT_NE(device(4 * kMiB, stream(1)), block);
}

// ---- forgotten streams that blocks still name

TEST_F(EdgeTest, ForAUseByAForgottenStreamItsDeviceIsWaitedForWhoeverHasItsHandle) {
  char* block = device(4 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  allocator->streams().forget(0, stream(2));
  machine->waits.clear();
  allocator->free(block);
  EXPECT_EQ(machine->waits, std::vector<std::string>{"host waits for device 0"});
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
}

TEST_F(EdgeTest, AFencePutOffByACaptureNamesNoStreamThatIsGoneMeanwhile) {
  char* block = device(4 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  allocator->private_pools().begin(
      0, 7, [](StreamHandle handle) { return handle == stream(9); }, true);
  allocator->free(block);
  allocator->streams().forget(0, stream(2));
  machine->waits.clear();
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_EQ(machine->waits, std::vector<std::string>{"host waits for device 0"});
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
}

TEST_F(EdgeTest, AFencePutOffByAnUnknownCaptureIsRecordedBeforeItsStreamGoes) {
  char* block = device(4 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->capturing = {stream(2)};
  allocator->free(block);
  machine->capturing.clear();
  machine->busy = {stream(2)};
  machine->waits.clear();
  allocator->streams().forget(0, stream(2));
  EXPECT_TRUE(machine->waits.empty()) << machine->waits.front();
  EXPECT_NE(device(4 * kMiB, stream(1)), block);
  machine->finish(stream(2));
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
}

class GoneStreamTest : public EdgeTest {
 protected:
  // `block` is a host block of 4 MiB that was moved to the device on the stream `gone`.
  void expect_home_when_forgotten(char* block, StreamHandle gone) {
    allocator->streams().forget(0, gone);
    machine->waits.clear();
    allocator->free(block);
    EXPECT_EQ(machine->waits, std::vector<std::string>{"host waits for device 0"});
    EXPECT_NE(device(4 * kMiB, gone), block) << "a new stream of that handle";
    EXPECT_EQ(host(4 * kMiB), block);
  }
};

TEST_F(GoneStreamTest, ABlockMovedForAForgottenStreamGoesHome) {
  char* block = host(4 * kMiB);
  to_device(block, stream(2));
  expect_home_when_forgotten(block, stream(2));
  EXPECT_EQ(allocator->inspection().residency(block, 4 * kMiB)[Place::host()], 4 * kMiB);
}

TEST_F(GoneStreamTest, ADisplacedBlockOfAForgottenStreamReturnsToItsPool) {
  char* block = host(4 * kMiB);
  to_device(block, stream(2));
  allocator->free(block);
  ASSERT_EQ(device(4 * kMiB, stream(2)), block);
  expect_home_when_forgotten(block, stream(2));
}

TEST_F(EdgeTest, AUseByAllStreamsNamesNoneThatIsGone) {
  allocator->private_pools().begin(
      0, 7, [](StreamHandle handle) { return handle == stream(1); }, false);
  allocator->free(device(4 * kMiB, stream(1)));
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  allocator->streams().forget(0, stream(1));
  char* block = device(4 * kMiB, stream(3));
  EXPECT_TRUE(allocator->streams().record_use_of_all(block, 0));
  EXPECT_EQ(allocator->streams().uses_of(block),
            std::vector<DeviceStream>{DeviceStream({0, stream(3)})});
}

TEST_F(EdgeTest, AUseByAllStreamsCountsOneThatIsGoneUntilItsDeviceWasWaitedFor) {
  device(4 * kMiB, stream(1));
  char* first = device(8 * kMiB, stream(3));
  char* second = device(8 * kMiB, stream(3));
  allocator->streams().forget(0, stream(1));
  for (char* block : {first, second}) EXPECT_TRUE(allocator->streams().record_use_of_all(block, 0));
  machine->waits.clear();
  allocator->free(first);
  EXPECT_EQ(machine->waits, std::vector<std::string>{"host waits for device 0"});
  EXPECT_EQ(device(8 * kMiB, stream(3)), first);
  allocator->free(second);
  EXPECT_TRUE(allocator->streams().record_use_of_all(first, 0));
  allocator->free(first);
  EXPECT_EQ(machine->waits.size(), 1u) << "once is enough";
}

// ---- captures that the allocator was not notified of

TEST_F(EdgeTest, AStreamThatIsCapturedIsMadeToWaitForNothing) {
  machine->capturing = {stream(1)};
  machine->waits.clear();
  char* block = device(8 * kMiB, stream(1));
  EXPECT_EQ(count_hints(HintKind::kPrefetch), 1u);
  EXPECT_TRUE(machine->waits.empty()) << machine->waits.front();
  char* moved = host(8 * kMiB);
  to_device(moved, stream(1));
  EXPECT_TRUE(machine->waits.empty()) << machine->waits.front();
  EXPECT_THROW(allocator->streams().wait_for_uses(moved), std::runtime_error);
  EXPECT_THROW(allocator->streams().wait_for_uses(block), std::runtime_error);
  machine->capturing.clear();
  allocator->streams().wait_for_uses(block);
}

// ---- where pages are believed to be, and what is counted

TEST_F(EdgeTest, APrefetchThatFailedIsNotBelieved) {
  char* block = host(4 * kMiB);
  machine->failures["prefetch"] = 1;
  to_device(block);
  EXPECT_EQ(allocator->inspection().residency(block, 4 * kMiB).count(Place::device(0)), 0u);
  EXPECT_TRUE(allocator->prefetch(block, 4 * kMiB, Place::device(0), 0, nullptr));
  EXPECT_EQ(allocator->inspection().residency(block, 4 * kMiB)[Place::device(0)], 4 * kMiB);
}

TEST_F(EdgeTest, ATraceTellsWhichHintsWereSentAndWhichWereRefused) {
  Configuration configuration = small_configuration();
  configuration.trace_file = ::testing::TempDir() + "hints-%p.trace";
  start(configuration);
  char* block = host(4 * kMiB);
  char* last = device(8 * kMiB);
  machine->failures["prefetch"] = 1;
  EXPECT_TRUE(allocator->prefetch(block, 4 * kMiB, Place::device(0), 0, nullptr));
  EXPECT_TRUE(allocator->prefetch(block, 4 * kMiB, Place::device(0), 0, nullptr));
  device(4096);  // so the span is not released
  allocator->free(last);
  machine->failures["discard"] = 1;
  allocator->release_cached();
  allocator->release_cached();
  allocator->tracing().stop();
  const std::string file = ::testing::TempDir() + "hints-" + std::to_string(getpid()) + ".trace";
  const Trace trace = read_trace(file);
  auto traced = [&](const char* address) {
    std::vector<std::string> lines;
    for (const ThreadEvent& event : trace.events) {
      if (event.address != address_of(address)) continue;
      const std::string lane = event.stream == 0 ? "" : " on the lane";
      if (event.kind == TraceKind::kPrefetch) lines.push_back("prefetch" + lane);
      if (event.kind == TraceKind::kDiscard) lines.push_back("discard" + lane);
      if (event.kind == TraceKind::kFailure) lines.push_back(std::string(trace.text(event)));
    }
    return lines;
  };
  EXPECT_EQ(traced(block),
            (std::vector<std::string>{"prefetch: FAKE_FAILURE (99)", "prefetch on the lane"}));
  EXPECT_EQ(traced(last),
            (std::vector<std::string>{"prefetch on the lane", "discard: FAKE_FAILURE (99)",
                                      "discard on the lane"}));
  std::remove(file.c_str());
}

TEST_F(EdgeTest, APartThatMovesElsewhereLeavesTheBlockWithTheStreamThatHasTheRest) {
  start(small_configuration(), 2);
  char* block = host(4 * kMiB);
  auto move = [&](Place source, int device, StreamHandle on, std::size_t size_bytes) {
    ASSERT_NE(allocator->move(block,
                              {source, Place::device(device), device, on, true, size_bytes, false}),
              nullptr);
  };
  move(Place::host(), 1, stream(2), 0);
  move(Place::device(1), 0, stream(1), kMiB);
  allocator->free(block);
  EXPECT_EQ(allocator->allocate(Facade::kDevice, 1, 4 * kMiB, stream(2)), block);
}

TEST_F(EdgeTest, AnAlignedHostBlockKnowsTheRequestedBytes) {
  for (Facade facade : {Facade::kHost, Facade::kPinned}) {
    void* block = allocator->allocate_aligned(facade, 0, 100, 4096, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % kPageBytes, 0u);
    EXPECT_EQ(allocator->find(block)->requested_bytes, 100u);
    EXPECT_EQ(allocator->find(block)->size_bytes, kPageBytes);
    allocator->free(block);
    EXPECT_LT(allocator->find(allocator->allocate(facade, 0, 5000))->size_bytes, kPageBytes);
  }
}

TEST_F(EdgeTest, SmallRequestsThatTakeAPageAreNoCacheHits) {
  device(100);
  EXPECT_EQ(allocator->statistics().cache_hits[static_cast<std::size_t>(Facade::kDevice)], 0u);
  device(100);
  EXPECT_EQ(allocator->statistics().cache_hits[static_cast<std::size_t>(Facade::kDevice)], 1u);
}

TEST_F(EdgeTest, CallbacksMayBeAddedWhileOthersRun) {
  std::atomic<bool> over = false;
  device(200 * kMiB);
  std::thread other([&] {
    while (!over) EXPECT_THROW(device(100 * kMiB), OutOfMemoryError);
  });
  for (int i = 0; i < 200; ++i) allocator->limits().add_pressure_callback([] { return false; });
  over = true;
  other.join();
}

}  // namespace
}  // namespace uvm
