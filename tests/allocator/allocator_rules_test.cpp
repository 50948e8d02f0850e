// Rules for rare cases: several devices, captures, pools of ended threads, and drivers that refuse
// a call. Also tests which messages are logged and which counters grow.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "allocator/cache/thread_cache.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "allocator/reclaim/decay.hpp"
#include "tools/trace/trace_reader.hpp"

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class RulesTest : public testing::AllocatorTest {
 protected:
  char* on_device(int index, std::size_t size_bytes, StreamHandle on = nullptr) {
    return static_cast<char*>(allocator->allocate(Facade::kDevice, index, size_bytes, on));
  }
  std::uint64_t begin(std::uint64_t id, StreamHandle routed, bool capturing = false,
                      int index = 0) {
    return allocator->private_pools().begin(
        index, id, [routed](StreamHandle handle) { return handle == routed; }, capturing);
  }
  void end(std::uint64_t id, int index = 0) {
    EXPECT_TRUE(allocator->private_pools().end(index, id));
  }
  const ClassStatistics& all_of(Facade facade, int index = 0) {
    figures = allocator->statistics();
    return figures
        .classes[static_cast<std::size_t>(facade)][static_cast<std::size_t>(index)][kSizeClasses];
  }
  std::uint64_t reserved(Facade facade, int index = 0) {
    return all_of(facade, index).reserved_bytes.current;
  }
  bool was_waited_for(const std::string& wait) const {
    return std::find(machine->waits.begin(), machine->waits.end(), wait) != machine->waits.end();
  }
  Statistics figures;
};

class TightTest : public RulesTest {
 protected:
  void SetUp() override { start_with(64 * kMiB); }
  void start_with(std::size_t budget_bytes, int devices = 1) {
    Configuration configuration = small_configuration();
    configuration.budget_bytes = budget_bytes;
    start(configuration, devices);
  }
  // Fills one page with small objects.
  std::vector<char*> fill_page() {
    std::vector<char*> blocks;
    for (int i = 0; i < 512; ++i) blocks.push_back(device(4096));
    return blocks;
  }
};

// ---- destruction and logged messages

TEST_F(RulesTest, AnAllocatorGoesWhenItsDevicesAreThrough) {
  device(4 * kMiB, stream(1));
  machine->busy = {stream(1)};
  allocator.reset();
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(RulesTest, ATraceThatCannotBeStartedIsSaid) {
  Configuration configuration = small_configuration();
  configuration.trace_file = "/nowhere/run.trace";
  ::testing::internal::CaptureStderr();
  start(configuration);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("/nowhere/run.trace: cannot be opened"),
            std::string::npos);
}

TEST_F(RulesTest, ASpanThatTheDriverDoesNotTakeBackIsSaid) {
  allocator->free(device(4 * kMiB));
  machine->failures["free_managed"] = 1;
  ::testing::internal::CaptureStderr();
  allocator->release_cached();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("32 MiB could not be given back"),
            std::string::npos);
  machine->allocated_bytes = 0;
}

// ---- small objects

TEST_F(TightTest, SmallObjectsThatAnotherThreadKeepsAreFoundBeforeAllIsGivenBack) {
  start_with(2 * kMiB);
  std::promise<void> kept;
  std::promise<void> over;
  std::thread other([&] {
    for (char* block : fill_page()) allocator->free(block);
    kept.set_value();
    over.get_future().wait();
  });
  kept.get_future().wait();
  fill_page();
  EXPECT_EQ(allocator->statistics().pressure_rounds, 0u);
  over.set_value();
  other.join();
}

TEST_F(TightTest, ACallbackMakesRoomForSmallObjectsToo) {
  start_with(2 * kMiB);
  std::vector<char*> blocks = fill_page();
  allocator->limits().add_pressure_callback([] { return false; });
  allocator->limits().add_pressure_callback([&] {
    allocator->free(blocks.back());
    return true;
  });
  EXPECT_EQ(device(4096), blocks.back());
}

TEST_F(TightTest, ForASmallObjectCachedMemoryIsGivenBack) {
  allocator->free(host(64 * kMiB));
  EXPECT_NE(device(512), nullptr);
  EXPECT_EQ(allocator->statistics().pressure_rounds, 1u);
  EXPECT_EQ(allocator->statistics().service[2][0].pressure_rounds, 1u);
}

TEST_F(RulesTest, ADriverThatFailsASmallRequestForAnotherReasonSaysSo) {
  machine->failures["anything"] = 100;
  try {
    device(512);
    ADD_FAILURE() << "it was allocated";
  } catch (const OutOfMemoryError&) {
    ADD_FAILURE() << "there is memory";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("FAKE_FAILURE (700)"), std::string::npos);
  }
  machine->failures.clear();
  EXPECT_NE(device(512), nullptr);
}

TEST_F(RulesTest, APageOfSmallObjectsIsPrefetchedOnce) {
  char* block = device(512);
  device(512);
  EXPECT_EQ(count_hints(HintKind::kPrefetch), 1u);
  EXPECT_EQ(machine->hints.back(),
            (Hint{HintKind::kPrefetch, {}, Place::device(0), block, 2 * kMiB}));
}

TEST_F(RulesTest, AMarkOfASmallObjectGoesWithIt) {
  std::vector<char*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(device(512));
  for (char* block : blocks) EXPECT_TRUE(FrameworkBridge(*allocator).mark_exported(block));
  for (char* block : blocks) allocator->free(block);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(allocator->find(device(512))->exported);
}

// ---- the order of steps under memory pressure

TEST_F(TightTest, ABlockOfAnotherDevicesStreamIsUsedWhenThatDeviceIsThrough) {
  start_with(64 * kMiB, 2);
  machine->device_of = {{stream(5), 1}};
  char* block = on_device(1, 40 * kMiB, stream(5));
  allocator->free(block);
  machine->busy = {stream(5)};
  EXPECT_NE(on_device(0, 40 * kMiB, stream(1)), nullptr);
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(TightTest, WhatIsFreeInAPrivatePoolIsTakenFromItByNobody) {
  begin(7, stream(1));
  allocator->free(device(40 * kMiB, stream(1)));
  end(7);
  EXPECT_THROW(device(40 * kMiB, stream(2)), OutOfMemoryError);
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  EXPECT_NE(device(40 * kMiB, stream(2)), nullptr);
}

TEST_F(TightTest, ADisplacedBlockOfAnotherStreamIsTakenAndItsEventsAreNotLost) {
  char* block = host(40 * kMiB);
  to_device(block, stream(1));
  machine->busy = {stream(1)};
  allocator->free(block);
  EXPECT_EQ(device(40 * kMiB, stream(2)), block);
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(TightTest, AfterACallbackThatFreesNothingTheOthersAreCalled) {
  char* block = device(60 * kMiB);
  allocator->limits().add_pressure_callback([] { return false; });
  allocator->limits().add_pressure_callback([&] {
    if (block == nullptr) return false;
    allocator->free(std::exchange(block, nullptr));
    return true;
  });
  EXPECT_NE(device(60 * kMiB), nullptr);
}

TEST_F(TightTest, WhatACallbackFreesIntoItsThreadsCacheIsFound) {
  start_with(2 * kMiB);
  std::vector<char*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(device(32 << 10));
  allocator->limits().add_pressure_callback([&] {
    allocator->free(blocks[20]);
    return true;
  });
  EXPECT_EQ(device(32 << 10), blocks[20]);
}

TEST_F(TightTest, TheErrorSaysWhatRefusedTheRequest) {
  EXPECT_NE(refusal(80 * kMiB).find("the budget is used up"), std::string::npos);
  machine->failures["allocate_managed"] = 100;
  EXPECT_NE(refusal(40 * kMiB).find("FAKE_OUT_OF_MEMORY"), std::string::npos);
}

TEST_F(RulesTest, WhatTheDriverRefusesForACaptureIsRetried) {
  machine->failures["allocation_in_capture"] = 1;
  EXPECT_NE(device(4 * kMiB), nullptr);
  machine->failures["allocation_in_capture"] = 100;
  EXPECT_THROW(device(40 * kMiB), OutOfMemoryError);
}

// ---- where memory comes from

TEST_F(RulesTest, PagesAreOfLargeBlocksButForTheSegmentsOfSmallOnes) {
  constexpr std::size_t kSegmentBytes = 256 << 10;
  allocator->free(host(4 * kMiB));
  host(100 << 10);
  EXPECT_EQ(allocator->statistics().classes[0][0][0].reserved_bytes.current, 0u);
  EXPECT_EQ(allocator->statistics().classes[0][0][1].reserved_bytes.current, 4 * kMiB);
  host(100);
  EXPECT_EQ(allocator->statistics().classes[0][0][0].reserved_bytes.current, kSegmentBytes);
  EXPECT_EQ(allocator->statistics().classes[0][0][1].reserved_bytes.current,
            4 * kMiB - kSegmentBytes);
}

TEST_F(RulesTest, OnAnIntegratedDeviceNothingIsDiscardedAndSpansAreSmall) {
  Configuration configuration = without_thread_caches();
  configuration.span_bytes.reset();
  DeviceCapabilities integrated = machine->capabilities;
  integrated.integrated = true;
  start(configuration, 1, integrated);
  device(2 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 32 * kMiB);
}

TEST_F(RulesTest, ABlockThatIsTakenBackIsPrefetchedToWhereItIsUsed) {
  char* block = host(4 * kMiB);
  to_device(block);
  allocator->free(block);
  machine->hints.clear();
  ASSERT_EQ(host(4 * kMiB), block);
  EXPECT_EQ(machine->hints,
            (std::vector<Hint>{{HintKind::kPrefetch, {}, Place::host(), block, 4 * kMiB}}));
}

TEST_F(RulesTest, WhatIsGivenBackOrDiscardedIsOnNoDevice) {
  Configuration configuration = without_thread_caches();
  configuration.reserve_bytes = machine->total_bytes - 16 * kMiB;
  start(configuration);
  for (int round = 0; round < 10; ++round) {
    allocator->free(device(8 * kMiB));
    allocator->release_cached();
  }
  EXPECT_EQ(count_hints(HintKind::kPrefetch), 10u) << "there is room for them on the device";
  device(2 * kMiB);
  for (int round = 0; round < 10; ++round) {
    allocator->free(device(8 * kMiB));
    allocator->release_cached();
  }
  EXPECT_EQ(count_hints(HintKind::kPrefetch), 21u) << "a discarded page is populated again";
}

TEST_F(RulesTest, AnAlignedBlockOfAPoolOfWholePagesTakesNoMoreOfThem) {
  begin(7, stream(1));
  EXPECT_TRUE(allocator->private_pools().give_whole_pages(0, 7));
  void* block = allocator->allocate_aligned(Facade::kDevice, 0, 3000, 4096, stream(1));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % kPageBytes, 0u);
  EXPECT_EQ(allocator->find(block)->size_bytes, 2 * kMiB);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 2 * kMiB);
  end(7);
}

TEST_F(RulesTest, PagesThatWereTouchedBeforeAreUsedFirst) {
  host(30 * kMiB);
  char* touched = host(4 * kMiB);
  host(4 * kMiB);
  allocator->free(touched);
  allocator->release_cached();
  EXPECT_EQ(host(2 * kMiB), touched) << "and not what the first span has left";
}

TEST_F(RulesTest, PagesThatAreAdvisedOtherwiseAreNotJoined) {
  char* low = host(2 * kMiB);
  char* high = host(2 * kMiB);
  ASSERT_EQ(high, low + 2 * kMiB);
  EXPECT_TRUE(allocator->advise(high, {.preferred = Place::device(0)}));
  allocator->free(low);
  allocator->free(high);
  EXPECT_NE(host(4 * kMiB), low);
}

TEST_F(RulesTest, ATailThatIsTooSmallForABlockKeepsItsPage) {
  start(without_thread_caches());
  char* block = device(4 * kMiB + kGranule);
  device(kMiB);
  allocator->free(block);
  allocator->release_cached();
  allocator->inspection().check_invariants();
  EXPECT_EQ(allocator->statistics().discarded_bytes, 2 * kMiB);
}

TEST_F(RulesTest, TheRestOfADisplacedBlockReturnsWhenItsStreamHasFinished) {
  char* block = host(8 * kMiB);
  to_device(block, stream(1));
  machine->busy = {stream(1)};
  allocator->free(block);
  ASSERT_EQ(device(6 * kMiB, stream(1)), block);
  EXPECT_NE(host(2 * kMiB), block + 6 * kMiB);
  machine->finish(stream(1));
  EXPECT_EQ(host(2 * kMiB), block + 6 * kMiB);
}

TEST_F(RulesTest, PagesWhoseDiscardIsNotOverStayTouched) {
  device(2 * kMiB);
  allocator->free(device(8 * kMiB));
  machine->failures["synchronize_stream"] = 1;
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 10 * kMiB);
  EXPECT_EQ(allocator->statistics().discarded_bytes, 0u);
}

TEST_F(RulesTest, WithoutAStreamForPrefetchesNoneIsBelieved) {
  char* block = host(4 * kMiB);
  machine->failures["create_stream"] = 1;
  to_device(block);
  EXPECT_EQ(allocator->inspection().residency(block, 4 * kMiB).count(Place::device(0)), 0u);
}

// ---- captures

TEST_F(RulesTest, DuringACaptureNoStreamIsMadeToWaitForAPrefetch) {
  begin(7, stream(1), true);
  char* block = device(8 * kMiB, stream(1));
  device(512, stream(2));
  EXPECT_EQ(count_hints(HintKind::kPrefetch), 0u);
  EXPECT_TRUE(machine->waits.empty());
  allocator->free(block);
  end(7);
}

TEST_F(RulesTest, DuringACaptureNothingIsGivenBack) {
  Configuration configuration = without_thread_caches();
  configuration.decay_seconds = 8;
  start(configuration);
  allocator->free(device(8 * kMiB, stream(2)));
  allocator->free(host(8 * kMiB));
  begin(7, stream(1), true);
  machine->busy = {stream(2)};
  const Decay::Time now = std::chrono::steady_clock::now() + std::chrono::hours(1);
  auto calls = allocator->inspection().runtime_calls();
  allocator->release_cached();
  allocator->release_cached_of(Facade::kDevice);
  allocator->private_pools().release_cached(0, 0);
  allocator->limits().decay(now);
  allocator->limits().decay(now + std::chrono::seconds(100));
  EXPECT_EQ(allocator->inspection().runtime_calls(), calls);
  EXPECT_EQ(reserved(Facade::kDevice), 8 * kMiB);
  end(7);
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

TEST_F(RulesTest, WhereTheDriverSaysNothingOfAStreamForACaptureNoEventIsRecordedOnIt) {
  char* block = device(8 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->failures["is_capturing"] = 1;
  auto recorded = [&] { return allocator->inspection().runtime_calls()["record_event"]; };
  const auto before = recorded();
  allocator->free(block);
  EXPECT_EQ(recorded(), before);
  EXPECT_NE(device(8 * kMiB, stream(3)), block);
  EXPECT_GT(recorded(), before);
}

TEST_F(RulesTest, EventsOfABlockThatCannotBeFencedYetAreNotLost) {
  char* block = device(8 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  std::thread([&] { allocator->record_use(block, 0, kPerThreadStream); }).join();
  machine->capturing = {stream(9)};
  allocator->free(block);
  EXPECT_NE(device(8 * kMiB, stream(1)), block) << "the device cannot be waited for";
  machine->capturing.clear();
  EXPECT_EQ(device(8 * kMiB, stream(1)), block);
}

// ---- fences

TEST_F(RulesTest, AllBlocksWhoseFencesAreOverComeBackAtOnce) {
  std::vector<char*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(device(2 * kMiB, stream(1)));
  for (char* block : blocks) allocator->record_use(block, 0, stream(2));
  for (char* block : blocks) allocator->free(block);
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u);
  EXPECT_EQ(allocator->statistics().service[2][0].fence_waits, 1u);
}

TEST_F(RulesTest, ForAnEventThatCannotBeWaitedForItsDeviceIs) {
  char* block = device(8 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->busy = {stream(2)};
  allocator->free(block);
  machine->failures["synchronize_event"] = 2;
  allocator->release_cached();
  EXPECT_TRUE(machine->busy.empty());
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

TEST_F(RulesTest, AFacadesBlocksBehindFencesAreWaitedForBeforeItsCacheIsGivenBack) {
  char* block = device(8 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->busy = {stream(2)};
  allocator->free(block);
  allocator->release_cached_of(Facade::kDevice);
  EXPECT_EQ(reserved(Facade::kDevice), 0u);
}

TEST_F(RulesTest, OneFacadesCacheIsGivenBackWithoutTheSmallObjectsOfOthers) {
  allocator->free(device(512));
  allocator->free(allocator->allocate(Facade::kPinned, 0, 512));
  allocator->release_cached_of(Facade::kPinned);
  EXPECT_EQ(reserved(Facade::kPinned), 0u);
  EXPECT_EQ(reserved(Facade::kDevice), 2 * kMiB);
}

// ---- several devices

TEST_F(RulesTest, OneDevicesCacheIsGivenBackAlone) {
  start(small_configuration(), 2);
  for (int index : {0, 1}) allocator->free(on_device(index, 8 * kMiB));
  allocator->private_pools().release_cached(1, 0);
  EXPECT_EQ(reserved(Facade::kDevice, 0), 8 * kMiB);
  EXPECT_EQ(reserved(Facade::kDevice, 1), 0u);
}

TEST_F(RulesTest, WhoUsedPagesIsKnownAlsoAfterAWaitThatWasRefused) {
  start(small_configuration(), 2);
  machine->device_of = {{stream(5), 1}};
  host(4 * kMiB);
  machine->failures["allocate_managed"] = 100;
  for (std::size_t size_bytes : {std::size_t{512}, 4 * kMiB}) {
    allocator->free(on_device(1, size_bytes, stream(5)));
  }
  machine->busy = {stream(5)};
  machine->capturing = {stream(9)};
  allocator->release_cached();
  machine->capturing.clear();
  allocator->release_cached();
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(RulesTest, PrivatePoolsOfOneNumberOnTwoDevicesAreTwo) {
  start(small_configuration(), 2);
  begin(7, stream(1), true, 0);
  EXPECT_EQ(allocator->find(on_device(1, kMiB, stream(1)))->private_pool, 0u);
  char* first = on_device(0, 4 * kMiB, stream(1));
  end(7, 0);
  begin(7, stream(1), false, 1);
  char* second = on_device(1, 6 * kMiB, stream(1));
  end(7, 1);
  EXPECT_TRUE(allocator->find(first)->exported);
  EXPECT_FALSE(allocator->find(second)->exported) << "it was not captured";
  ASSERT_EQ(allocator->private_pools().blocks(0, 7).size(), 1u);
  EXPECT_EQ(allocator->private_pools().blocks(0, 7)[0].address, first);
  EXPECT_EQ(allocator->private_pools().blocks(1, 7)[0].address, second);
  allocator->free(second);
  EXPECT_TRUE(allocator->private_pools().release(1, 7));
  allocator->release_cached();
  EXPECT_EQ(reserved(Facade::kDevice, 1), 2 * kMiB) << "the other one's users do not count";
  allocator->reset_peaks(Facade::kDevice, 0);
  for (const PrivatePoolStatistics& pool : allocator->statistics().private_pools) {
    EXPECT_EQ(pool.reserved_bytes[kSizeClasses].peak, pool.device == 0 ? 4 * kMiB : 6 * kMiB);
  }
}

TEST_F(RulesTest, AllStreamsOfADeviceAreThoseThatRequestedMemoryOnIt) {
  start(small_configuration(), 2);
  char* block = on_device(0, kMiB, stream(1));
  on_device(0, kMiB, stream(2));
  on_device(0, kMiB, stream(3));
  on_device(1, kMiB, stream(4));
  allocator->streams().forget(0, stream(3));
  allocator->record_use(block, 0, stream(2));
  EXPECT_TRUE(allocator->streams().record_use_of_all(block, 0));
  EXPECT_EQ(allocator->streams().uses_of(block),
            (std::vector<DeviceStream>{DeviceStream::named(0, stream(2)),
                                       DeviceStream{0, stream(3), DeviceStream::kFirstGone},
                                       DeviceStream::named(0, stream(1))}));
}

TEST_F(RulesTest, AMoveWaitsForNobodyWhoHasTheBlockOnAThirdDevice) {
  start(small_configuration(), 3);
  char* block = host(4 * kMiB);
  auto move = [&](Place source, int index, StreamHandle on) {
    machine->waits.clear();
    ASSERT_NE(allocator->move(block, {source, Place::device(index), index, on}), nullptr);
  };
  move(Place::host(), 0, stream(1));
  move(Place::host(), 1, stream(2));
  move(Place::device(0), 2, stream(3));
  EXPECT_FALSE(was_waited_for("stream lane waits for stream 2"));
}

TEST_F(RulesTest, AStreamIsForgottenTwiceWithoutAWait) {
  device(4 * kMiB, stream(1));
  allocator->streams().forget(0, stream(1));
  machine->capturing = {stream(9)};
  machine->waits.clear();
  allocator->streams().forget(0, stream(1));
  EXPECT_TRUE(machine->waits.empty());
}

// ---- per-thread default streams

TEST_F(RulesTest, AThreadThatFreedAnothersBlockLeavesThatThreadItsPools) {
  char* mine = device(8 * kMiB, kPerThreadStream);
  std::thread([&] { allocator->free(mine); }).join();
  std::thread([&] { EXPECT_NE(device(8 * kMiB, kPerThreadStream), mine); }).join();
  EXPECT_EQ(device(8 * kMiB, kPerThreadStream), mine);
}

TEST_F(RulesTest, WhatAnEndedThreadHadInAPrivatePoolStaysThePools) {
  begin(7, kPerThreadStream);
  char* block = nullptr;
  std::thread([&] { allocator->free(block = device(8 * kMiB, kPerThreadStream)); }).join();
  end(7);
  std::thread([&] { EXPECT_NE(device(8 * kMiB, kPerThreadStream), block); }).join();
}

TEST_F(RulesTest, APrivatePoolGetsNothingOfWhatAnEndedThreadHad) {
  char* block = nullptr;
  std::thread([&] { allocator->free(block = device(8 * kMiB, kPerThreadStream)); }).join();
  begin(7, kPerThreadStream);
  EXPECT_NE(device(8 * kMiB, kPerThreadStream), block);
  end(7);
  std::thread([&] { EXPECT_EQ(device(8 * kMiB, kPerThreadStream), block); }).join();
}

TEST_F(RulesTest, AnEndedThreadsPoolsAreForThreadsOfTheSameDevice) {
  start(small_configuration(), 2);
  char* block = nullptr;
  std::thread([&] { allocator->free(block = on_device(1, 8 * kMiB, kPerThreadStream)); }).join();
  std::thread([&] { EXPECT_NE(on_device(0, 8 * kMiB, kPerThreadStream), block); }).join();
  std::thread([&] { EXPECT_EQ(on_device(1, 8 * kMiB, kPerThreadStream), block); }).join();
}

TEST_F(RulesTest, DuringACaptureNoEndedThreadsPoolsAreTakenOver) {
  char* block = nullptr;
  std::thread([&] { allocator->free(block = device(8 * kMiB, kPerThreadStream)); }).join();
  begin(7, stream(1), true);
  machine->waits.clear();
  EXPECT_NE(device(8 * kMiB, kPerThreadStream), block);
  EXPECT_TRUE(machine->waits.empty());
  end(7);
  std::thread([&] { EXPECT_EQ(device(8 * kMiB, kPerThreadStream), block); }).join();
}

// ---- private pools

TEST_F(RulesTest, OfAPoolThatIsOpenTwiceTheOneThatIsNamedEnds) {
  const std::uint64_t outer = begin(7, stream(1));
  const std::uint64_t inner = begin(7, stream(2));
  EXPECT_FALSE(allocator->private_pools().end(0, 7, inner + 1));
  EXPECT_TRUE(allocator->private_pools().end(0, 7, outer));
  EXPECT_FALSE(allocator->private_pools().end(0, 7, outer)) << "it has ended";
  EXPECT_EQ(allocator->find(device(kMiB, stream(1)))->private_pool, 0u);
  EXPECT_EQ(allocator->find(device(kMiB, stream(2)))->private_pool, 7u);
  EXPECT_TRUE(allocator->private_pools().end(0, 7, inner));
}

TEST_F(RulesTest, APoolIsRestoredWhenTheUsersOfWhatWasFreedAreThrough) {
  begin(7, stream(1));
  char* block = device(4 * kMiB, stream(1));
  const auto wanted = allocator->private_pools().blocks(0, 7);
  allocator->record_use(block, 0, stream(2));
  machine->busy = {stream(2)};
  allocator->free(block);
  allocator->private_pools().restore(0, 7, wanted);
  EXPECT_TRUE(allocator->find(block)->live);
  EXPECT_TRUE(machine->busy.empty());
  end(7);
}

TEST_F(RulesTest, ABlockThatAPoolsBlocksLeaveNoRoomForIsNotRestored) {
  begin(7, stream(1));
  char* block = device(3 * kMiB, stream(1));
  allocator->free(block);
  auto restore = [&](std::size_t offset, std::size_t size_bytes) {
    allocator->private_pools().restore(0, 7, {{block + offset, size_bytes, size_bytes}});
  };
  EXPECT_THROW(restore(kGranule, kMiB), std::invalid_argument) << "less than a block in front";
  EXPECT_THROW(restore(0, 4 * kMiB - kGranule), std::invalid_argument) << "or behind";
  EXPECT_THROW(restore(0, 40 * kMiB), std::invalid_argument);
  restore(kMiB, kMiB);
  EXPECT_TRUE(allocator->find(block + kMiB)->live);
  allocator->inspection().check_invariants();
  end(7);
}

TEST_F(RulesTest, MemoryOfPoolsInUseMakesNothingElseDecayFaster) {
  Configuration configuration = without_thread_caches();
  configuration.decay_seconds = 8;
  start(configuration);
  begin(7, stream(1));
  allocator->free(device(64 * kMiB, stream(1)));
  end(7);
  device(2 * kMiB, stream(2));
  allocator->free(device(16 * kMiB, stream(2)));
  const Decay::Time now = std::chrono::steady_clock::now() + std::chrono::hours(1);
  allocator->limits().decay(now);
  allocator->limits().decay(now + std::chrono::seconds(8));
  EXPECT_EQ(allocator->statistics().discarded_bytes, 8 * kMiB);
}

// ---- where pages are believed to be, and what is counted

TEST_F(RulesTest, TheMarkOfACaptureGoesWithItsBlock) {
  char* block = host(20 << 10);
  FrameworkBridge(*allocator).mark_live_exported();
  EXPECT_TRUE(allocator->find(block)->exported);
  allocator->free(block);
  ASSERT_EQ(host(20 << 10), block);
  EXPECT_FALSE(allocator->find(block)->exported);
}

TEST_F(RulesTest, ARecordThatNobodyHoldsHasTheStreamOfTheLastMove) {
  char* block = host(4 * kMiB);
  auto move = [&](StreamHandle on) {
    return allocator->move(block, {Place::host(), Place::device(0), 0, on, true, 0, false});
  };
  MovedStorage* record = move(stream(1));
  EXPECT_EQ(move(stream(2)), record);
  EXPECT_EQ(record->stream, stream(2));
}

TEST_F(RulesTest, AMoveOfAPartCountsThatPart) {
  char* block = host(8 * kMiB);
  const MoveRequest part{
      .source = Place::host(), .destination = Place::device(0), .size_bytes = 2 * kMiB};
  ASSERT_NE(allocator->move(block, part), nullptr);
  EXPECT_EQ(allocator->statistics().moves.bytes, 2 * kMiB);
}

TEST_F(RulesTest, OnAnIntegratedDeviceTheHostSaysWhatIsFree) {
  EXPECT_EQ(allocator->limits().free_bytes(0, {4096, machine->total_bytes}), 4096u);
  DeviceCapabilities integrated = machine->capabilities;
  integrated.integrated = true;
  start(small_configuration(), 1, integrated);
  EXPECT_GT(allocator->limits().free_bytes(0, {4096, machine->total_bytes}), 4096u);
}

TEST_F(RulesTest, ACopyOfTheThresholdsSizeCountsAsOneThatCouldHaveBeenAMove) {
  const std::size_t threshold = allocator->inspection().configuration().host_threshold_bytes;
  FrameworkBridge(*allocator).note_copy(CopyReason::kForeign, threshold - 1);
  FrameworkBridge(*allocator).note_copy(CopyReason::kForeign, threshold);
  const auto copies =
      allocator->statistics().moves.copies[static_cast<std::size_t>(CopyReason::kForeign)];
  EXPECT_EQ(copies.count, 2u);
  EXPECT_EQ(copies.bytes, 2 * threshold - 1);
  EXPECT_EQ(copies.bytes_at_or_above_threshold, threshold);
}

TEST_F(RulesTest, AnAutomaticBudgetGrowsByWhatIsConverted) {
  Configuration automatic = small_configuration();
  automatic.budget_bytes.reset();
  start(automatic);
  const std::size_t before = allocator->limits().budget_bytes();
  void* block = FrameworkBridge(*allocator).allocate_for_conversion(0, 3 * kMiB);
  EXPECT_EQ(allocator->limits().budget_bytes(), before + 4 * kMiB) << "whole pages of 2 MiB";
  EXPECT_THROW(FrameworkBridge(*allocator).allocate_for_conversion(7, 2 * kMiB),
               std::invalid_argument);
  EXPECT_EQ(allocator->limits().budget_bytes(), before + 4 * kMiB) << "there is no such device";
  const Statistics now = allocator->statistics();
  EXPECT_EQ(now.conversions.count, 1u);
  EXPECT_EQ(now.conversions.bytes, 3 * kMiB);
  EXPECT_EQ(now.budget_bytes, before + 4 * kMiB);
  allocator->free(block);
}

TEST_F(RulesTest, ABudgetThatTheProgramHasSetNoLongerGrows) {
  Configuration automatic = small_configuration();
  automatic.budget_bytes.reset();
  start(automatic);
  allocator->limits().set_budget(64 * kMiB);
  allocator->free(FrameworkBridge(*allocator).allocate_for_conversion(0, 3 * kMiB));
  EXPECT_EQ(allocator->limits().budget_bytes(), 64 * kMiB);
}

TEST_F(TightTest, AConversionKeepsTheBudgetThatTheUserHasSet) {
  EXPECT_THROW(FrameworkBridge(*allocator).allocate_for_conversion(0, 128 * kMiB),
               OutOfMemoryError);
  void* block = FrameworkBridge(*allocator).allocate_for_conversion(0, 32 * kMiB);
  EXPECT_EQ(allocator->limits().budget_bytes(), 64 * kMiB);
  EXPECT_EQ(allocator->statistics().conversions.count, 1u);
  allocator->free(block);
}

TEST_F(RulesTest, TotalsOfAllFacadesAddUp) {
  allocator->free(device(4 * kMiB));
  allocator->free(host(2 * kMiB));
  device(6 * kMiB);
  const Gauge live = allocator->statistics().live_bytes;
  EXPECT_EQ(live.increased, 12 * kMiB);
  EXPECT_EQ(live.decreased, 6 * kMiB);
  EXPECT_EQ(live.current, 6 * kMiB);
}

TEST_F(RulesTest, DisplacedBlocksAreFreeMemoryAndTheLargestFreeBlockIsOfAnyStream) {
  char* moved = host(8 * kMiB);
  to_device(moved, stream(1));
  const std::uint64_t metadata_bytes = allocator->statistics().metadata_bytes;
  allocator->free(moved);
  EXPECT_GT(allocator->statistics().metadata_bytes, metadata_bytes + (16 << 10)) << "a table";
  device(512 << 10, stream(2));
  const Statistics now = allocator->statistics();
  EXPECT_EQ(now.free_bytes, 8 * kMiB + 1536 * 1024);
  EXPECT_EQ(now.largest_free_bytes, 8 * kMiB);
}

TEST_F(RulesTest, WhatAThreadHasForItsCacheCountsWhileItRuns) {
  device(100);
  const std::uint64_t before = allocator->statistics().metadata_bytes;
  std::thread([&] {
    device(100);
    EXPECT_GT(allocator->statistics().metadata_bytes, before + sizeof(ThreadCache));
  }).join();
  EXPECT_LT(allocator->statistics().metadata_bytes, before + sizeof(ThreadCache));
}

TEST_F(RulesTest, DriverCallsTakeTime) {
  allocator->free(device(64 * kMiB));
  allocator->release_cached();
  const ServiceStatistics service = allocator->statistics().service[2][0];
  EXPECT_GT(service.span_allocations.total.count(), 0);
  EXPECT_GT(service.span_frees.total.count(), 0);
}

class Hearer final : public MemoryObserver {
 public:
  void pages_added(const StreamKey&, void*, std::size_t) noexcept override {}
  void pages_removed(const StreamKey&, void*, std::size_t) noexcept override {}
  void free_completed(const StreamKey&, void*, std::size_t requested_bytes) noexcept override {
    freed_bytes += requested_bytes;
  }
  std::size_t freed_bytes = 0;
};

TEST_F(RulesTest, AFreeForWhichTheDeviceWasWaitedForIsHeardOf) {
  Hearer hearer;
  FrameworkBridge(*allocator).set_memory_observer(&hearer);
  char* block = device(4 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->failures["record_event"] = 1;
  allocator->free(block);
  EXPECT_EQ(hearer.freed_bytes, 4 * kMiB);
  FrameworkBridge(*allocator).set_memory_observer(nullptr);
}

// ---- the trace

TEST_F(RulesTest, TheTraceTellsAllThatTheAllocatorDoes) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string file = folder / ("uvmalloc-rules-" + std::to_string(getpid()) + ".trace");
  start(without_thread_caches());
  ASSERT_EQ(allocator->tracing().start(file), "");
  char* kept = device(2 * kMiB, stream(1));
  allocator->free(device(8 * kMiB, stream(1)));
  char* moved = host(4 * kMiB);
  to_device(moved, stream(1));
  allocator->record_use(moved, 0, stream(2));
  allocator->release_cached();
  machine->failures["allocate_managed"] = 100;
  EXPECT_THROW(device(100 * kMiB, stream(1)), OutOfMemoryError);
  allocator->free(moved);
  allocator->free(kept);
  allocator->streams().forget(0, stream(1));
  allocator->tracing().stop();
  const Trace trace = read_trace(file);
  std::filesystem::remove(file);
  auto count = [&](TraceKind kind, auto matches) {
    return std::count_if(trace.events.begin(), trace.events.end(), [&](const ThreadEvent& event) {
      return event.kind == kind && matches(event);
    });
  };
  auto any = [](const ThreadEvent&) { return true; };
  auto of_stream_1 = [](const ThreadEvent& event) { return event.stream == trace_word(stream(1)); };
  EXPECT_EQ(count(TraceKind::kAllocate, any), 3);
  EXPECT_EQ(count(TraceKind::kFree, any), 3);
  EXPECT_EQ(count(TraceKind::kMove, of_stream_1), 1);
  EXPECT_EQ(count(TraceKind::kUse,
                  [](const ThreadEvent& event) { return event.stream == trace_word(stream(2)); }),
            1);
  EXPECT_EQ(count(TraceKind::kAdvise, any),
            static_cast<std::ptrdiff_t>(count_hints(HintKind::kAdvise)));
  EXPECT_EQ(count(TraceKind::kPrefetch, any),
            static_cast<std::ptrdiff_t>(count_hints(HintKind::kPrefetch)));
  EXPECT_GE(count(TraceKind::kPrefetch, any), 2);
  EXPECT_EQ(count(TraceKind::kDiscard,
                  [](const ThreadEvent& event) { return event.size_bytes == 8 * kMiB; }),
            1);
  EXPECT_EQ(count(TraceKind::kStream,
                  [&](const ThreadEvent& event) { return of_stream_1(event) && event.flags == 0; }),
            1);
  EXPECT_EQ(count(TraceKind::kStream,
                  [&](const ThreadEvent& event) {
                    return of_stream_1(event) && event.flags == kTraceGone;
                  }),
            1);
  EXPECT_EQ(count(TraceKind::kFailure, of_stream_1), 1) << "the request";
  EXPECT_GE(count(TraceKind::kFailure, [](const ThreadEvent& event) { return event.stream == 0; }),
            1)
      << "the driver's calls";
}

}  // namespace
}  // namespace uvm
