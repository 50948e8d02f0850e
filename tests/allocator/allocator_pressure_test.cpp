// The order of steps when memory runs out.
#include <future>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class PressureTest : public testing::AllocatorTest {
 protected:
  void SetUp() override {
    Configuration configuration = small_configuration();
    configuration.budget_bytes = 64 * kMiB;
    start(configuration);
  }
};

TEST_F(PressureTest, BeyondTheBudgetAllocationThrowsAndNothingIsLost) {
  char* held = device(60 * kMiB);
  held[0] = 7;
  try {
    device(8 * kMiB);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(error.requested_bytes(), 8 * kMiB);
    std::string text = error.what();
    EXPECT_NE(text.find("raise budget_bytes."), std::string::npos) << text;
    EXPECT_NE(text.find("60 MiB"), std::string::npos) << "who holds what: " << text;
  }
  EXPECT_EQ(held[0], 7);
  EXPECT_TRUE(allocator->find(held)->live);
  EXPECT_EQ(allocator->statistics().out_of_memory, 1u);
  EXPECT_NE(device(4 * kMiB), nullptr) << "what fits is still served";
}

TEST_F(PressureTest, ARaisedBudgetServesMoreAtOnce) {
  device(60 * kMiB);
  EXPECT_THROW(device(8 * kMiB), OutOfMemoryError);
  allocator->limits().set_budget(68 * kMiB);
  EXPECT_EQ(allocator->limits().budget_bytes(), 68 * kMiB);
  EXPECT_EQ(allocator->limits().first_budget_bytes(), 64 * kMiB);
  EXPECT_EQ(allocator->statistics().budget_bytes, 68 * kMiB);
  EXPECT_NE(device(8 * kMiB), nullptr);
  EXPECT_THROW(device(2 * kMiB), OutOfMemoryError);
}

TEST_F(PressureTest, ALoweredBudgetLeavesAPageOfEachKindForSmallObjects) {
  device(40 * kMiB);
  allocator->limits().set_budget(16 * kMiB);
  EXPECT_NE(device(512), nullptr) << "a program can still read a value";
  EXPECT_NE(host(512), nullptr);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 44 * kMiB);
  EXPECT_THROW(for (int count = 0; count < 5000; ++count) device(512), OutOfMemoryError);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 44 * kMiB);
}

TEST_F(PressureTest, ABudgetBelowWhatIsInUseFreesNothingAndServesCachedMemoryOnly) {
  char* held = device(40 * kMiB);
  held[0] = 7;
  char* cached = device(8 * kMiB);
  allocator->free(cached);
  allocator->limits().set_budget(16 * kMiB);
  EXPECT_EQ(held[0], 7);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 48 * kMiB);
  EXPECT_EQ(device(8 * kMiB), cached) << "its pages are in use already";
  EXPECT_THROW(device(2 * kMiB), OutOfMemoryError);
  EXPECT_THROW(host(2 * kMiB), OutOfMemoryError) << "the budget is that of all memory kinds";
  allocator->free(held);
  allocator->release_cached();
  EXPECT_NE(device(8 * kMiB), nullptr) << "16 MiB of 16 MiB";
  EXPECT_THROW(device(2 * kMiB), OutOfMemoryError);
  EXPECT_THROW(allocator->limits().set_budget(2 * kMiB - 1), std::invalid_argument);
  EXPECT_EQ(allocator->limits().budget_bytes(), 16 * kMiB) << "a refused budget changes nothing";
}

TEST_F(PressureTest, TheBudgetChangesWhileOtherThreadsAllocate) {
  std::vector<std::future<int>> threads;
  for (int number = 0; number < 3; ++number) {
    threads.push_back(std::async(std::launch::async, [this, number] {
      int served = 0;
      for (int round = 0; round < 300; ++round) {
        try {
          allocator->free(device(6 * kMiB, stream(number)));
          ++served;
        } catch (const OutOfMemoryError&) {
        }
      }
      return served;
    }));
  }
  for (int round = 0; round < 300; ++round) {
    allocator->limits().set_budget((round % 2 == 0 ? 8 : 64) * kMiB);
  }
  allocator->limits().set_budget(64 * kMiB);
  int served = 0;
  for (auto& thread : threads) served += thread.get();
  EXPECT_GT(served, 0);
  allocator->release_cached();
  EXPECT_NE(device(64 * kMiB), nullptr) << "nothing was lost";
  allocator->inspection().check_invariants();
}

TEST_F(PressureTest, CachedMemoryOfAnotherSizeIsGivenBackFirst) {
  allocator->free(device(40 * kMiB));
  allocator->free(host(20 * kMiB));
  EXPECT_NE(device(60 * kMiB), nullptr);
  EXPECT_EQ(allocator->statistics().pressure_rounds, 1u);
  EXPECT_EQ(allocator->statistics().out_of_memory, 0u);
}

TEST_F(PressureTest, PagesAreSparedOnceHalfOfTheBudgetIsTouched) {
  auto beside_one_mib = [&] {
    allocator->free(device(6 * kMiB));
    const char* odd = device(kMiB);
    return device(2 * kMiB) - odd;
  };
  EXPECT_EQ(beside_one_mib(), kMiB) << "no gap while there are pages to spare";
  device(3 * kMiB);  // fills the rest of the 6 MiB
  device(28 * kMiB);
  ASSERT_EQ(allocator->statistics().touched_bytes.current, 34 * kMiB);
  EXPECT_EQ(beside_one_mib(), 2 * kMiB) << "a page of its own";
}

TEST_F(PressureTest, PagesAreSparedOnceHalfOfTheDevicesLimitIsUsed) {
  allocator->limits().set_device_limit(0, 16 * kMiB);
  char* begin = device(10 * kMiB);
  allocator->free(begin);
  EXPECT_EQ(device(kMiB), begin);
  EXPECT_EQ(device(2 * kMiB), begin + 2 * kMiB);
}

TEST_F(PressureTest, ADevicesBudgetIsItsLimitAndWhatIsFree) {
  Configuration configuration = small_configuration();
  configuration.budget_bytes = 64 * kMiB;
  configuration.device_budget_bytes = 16 * kMiB;
  start(configuration);
  const MemoryFigures driver{1024 * kMiB, 1024 * kMiB};
  EXPECT_EQ(allocator->limits().free_bytes(0, driver), 16 * kMiB);
  allocator->limits().set_device_limit(0, 4 * kMiB);
  EXPECT_EQ(allocator->limits().free_bytes(0, driver), 16 * kMiB)
      << "as the driver's answer would be";
  allocator->limits().set_device_limit(0, 16 * kMiB);
  device(10 * kMiB);
  host(20 * kMiB);
  EXPECT_EQ(allocator->limits().free_bytes(0, driver), 6 * kMiB);
  std::string text = refusal(8 * kMiB);
  EXPECT_NE(text.find("failed: the device's limit is reached"), std::string::npos) << text;
  EXPECT_NE(text.find("The limit of device 0 is 16 MiB."), std::string::npos) << text;
  EXPECT_NE(text.find("raise device_budget_bytes, or"), std::string::npos) << text;
  host(30 * kMiB);
  EXPECT_EQ(allocator->limits().free_bytes(0, driver), 4 * kMiB) << "what is left of all";
  text = refusal(6 * kMiB);
  EXPECT_NE(text.find("failed: the budget is used up"), std::string::npos) << text;
  EXPECT_NE(text.find("raise budget_bytes."), std::string::npos) << text;
}

TEST_F(PressureTest, ScatteredFreePagesOfOtherFacadesAreUsedBeforeGivingUp) {
  // Each span has one live page, so no span can be released: only pages inside the spans are free.
  char* keep = host(2 * kMiB);
  char* scrap = host(30 * kMiB);
  allocator->free(scrap);
  char* block = device(30 * kMiB);
  EXPECT_NE(device(30 * kMiB), nullptr);
  EXPECT_EQ(allocator->statistics().out_of_memory, 0u);
  EXPECT_TRUE(allocator->find(keep)->live);
  EXPECT_TRUE(allocator->find(block)->live);
}

TEST_F(PressureTest, BlocksBehindFencesAreWaitedFor) {
  machine->busy = {stream(2)};
  char* block = device(40 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  allocator->free(block);
  EXPECT_EQ(device(40 * kMiB, stream(1)), block);
}

TEST_F(PressureTest, FreeBlocksOfOtherStreamsAreTakenAfterTheDeviceIsIdle) {
  machine->busy = {stream(1)};
  char* block = device(40 * kMiB, stream(1));
  allocator->free(block);
  EXPECT_EQ(device(40 * kMiB, stream(2)), block);
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(PressureTest, ABlockTakenFromAnotherStreamWaitsForItsUserBeforeItGoesHome) {
  char* block = device(40 * kMiB, stream(1));
  allocator->free(block);
  ASSERT_EQ(device(40 * kMiB, stream(2)), block);
  machine->busy = {stream(2)};
  allocator->free(block);
  machine->failures["allocate_managed"] = 100;
  char* again = device(8 * kMiB, stream(1));
  EXPECT_EQ(again, block);
  EXPECT_TRUE(machine->busy.empty()) << "taken only after stream 2 was through";
}

// Just after the wait for the device, another thread frees a block that its stream still uses.
TEST_F(PressureTest, ABlockFreedAfterTheWaitIsNotStolenWithItsWorkPending) {
  char* early = device(8 * kMiB, stream(3));
  char* late = device(20 * kMiB, stream(1));
  device(32 * kMiB, stream(2));
  allocator->free(early);
  machine->after_device_wait = [&] {
    allocator->free(late);
    machine->busy.insert(stream(1));
  };
  EXPECT_EQ(device(8 * kMiB, stream(2)), early) << "what was free before the wait";
  EXPECT_TRUE(machine->busy.contains(stream(1)));
}

TEST_F(PressureTest, ASegmentFreedAfterTheWaitIsNotGivenBackWithItsWorkPending) {
  char* early = device(8 * kMiB, stream(3));
  char* late = device(20 * kMiB, stream(1));
  allocator->free(early);
  machine->after_device_wait = [&] {
    allocator->free(late);
    machine->busy.insert(stream(1));
  };
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().classes[2][0][1].reserved_bytes.current, 20 * kMiB)
      << "it stays with its stream";
  EXPECT_EQ(device(20 * kMiB, stream(1)), late);
}

TEST_F(PressureTest, CallbacksRunBeforeTheErrorAndTheRequestIsTriedAgain) {
  char* block = device(60 * kMiB);
  int calls = 0;
  allocator->limits().add_pressure_callback([&] {
    ++calls;
    if (block == nullptr) return false;
    allocator->free(std::exchange(block, nullptr));
    return true;
  });
  EXPECT_NE(device(60 * kMiB), nullptr);
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(device(60 * kMiB), OutOfMemoryError);
  EXPECT_EQ(calls, 2);
}

TEST_F(PressureTest, ADriverThatRefusesIsAnOutOfMemoryErrorOnlyAfterARetry) {
  machine->failures["allocate_managed"] = 1;
  EXPECT_NE(device(4 * kMiB), nullptr) << "the second try succeeds";
  machine->failures["allocate_managed"] = 100;
  EXPECT_THROW(device(40 * kMiB), OutOfMemoryError);
  EXPECT_NE(device(4 * kMiB), nullptr) << "from the span that is there";
}

TEST_F(PressureTest, ADriverThatFailsForAnotherReasonSaysSoAndNothingIsGivenBack) {
  allocator->free(device(4 * kMiB));
  const std::uint64_t reserved = allocator->statistics().classes[2][0][1].reserved_bytes.current;
  machine->failures["anything"] = 2;
  try {
    device(40 * kMiB);
    ADD_FAILURE() << "it was allocated";
  } catch (const OutOfMemoryError&) {
    ADD_FAILURE() << "there is memory";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("allocate_managed: FAKE_FAILURE (700)"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(allocator->statistics().classes[2][0][1].reserved_bytes.current, reserved);
  EXPECT_THROW(allocator->allocate(Facade::kHost, 0, 40 * kMiB), std::runtime_error);
  EXPECT_NE(device(40 * kMiB), nullptr);
}

// Waiting for the device fails during a capture that the allocator was not notified of.
TEST_F(PressureTest, WhatCannotBeWaitedForIsNeitherStolenNorGivenBack) {
  char* block = device(40 * kMiB, stream(1));
  machine->busy = {stream(1)};
  allocator->free(block);
  machine->capturing = {stream(9)};
  EXPECT_THROW(device(40 * kMiB, stream(2)), OutOfMemoryError);
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 40 * kMiB);
  EXPECT_TRUE(machine->busy.contains(stream(1)));
  allocator->inspection().check_invariants();
  machine->capturing.clear();
  EXPECT_NE(device(40 * kMiB, stream(2)), nullptr);
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(PressureTest, ABlockThatACapturedStreamUsesWaitsUntilTheCaptureHasEnded) {
  char* block = device(8 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->capturing = {stream(2)};
  machine->busy = {stream(2)};
  allocator->free(block);
  EXPECT_NE(device(8 * kMiB, stream(1)), block);
  EXPECT_NE(device(8 * kMiB, stream(1)), block);
  machine->capturing.clear();
  EXPECT_NE(device(8 * kMiB, stream(1)), block) << "its work before the capture is not over";
  machine->finish(stream(2));
  EXPECT_EQ(device(8 * kMiB, stream(1)), block);
}

TEST_F(PressureTest, AnEventThatAWaitRefusesLeavesItsBlockAlone) {
  char* block = device(8 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->failures["record_event"] = 1;
  machine->capturing = {stream(9)};
  machine->busy = {stream(2)};
  allocator->free(block);
  EXPECT_NE(device(8 * kMiB, stream(1)), block);
  machine->capturing.clear();
  machine->finish(stream(2));
  EXPECT_EQ(device(8 * kMiB, stream(1)), block);
}

using DeviceLimitTest = testing::AllocatorTest;

TEST_F(DeviceLimitTest, ADeviceHoldsNoMoreThanItsLimit) {
  allocator->limits().set_device_limit(0, 16 * kMiB);
  char* first = device(10 * kMiB);
  EXPECT_THROW(device(8 * kMiB), OutOfMemoryError);
  EXPECT_NE(host(64 * kMiB), nullptr) << "the limit is the device facade's";
  char* small = device(512);
  EXPECT_NE(small, nullptr);
  allocator->free(first);
  EXPECT_NE(device(14 * kMiB), nullptr) << "what is cached is given back first";
  EXPECT_THROW(device(4 * kMiB), OutOfMemoryError);
  EXPECT_EQ(allocator->statistics().service[2][0].out_of_memory, 2u);
  allocator->limits().set_device_limit(0, SIZE_MAX);
  EXPECT_NE(device(4 * kMiB), nullptr);
  EXPECT_THROW(allocator->limits().set_device_limit(1, 0), std::out_of_range);
}

TEST_F(DeviceLimitTest, SmallObjectsKeepToTheLimitToo) {
  allocator->limits().set_device_limit(0, 2 * kMiB);
  std::size_t served = 0;
  EXPECT_THROW(
      for (;;) {
        device(4096);
        ++served;
      },
      OutOfMemoryError);
  EXPECT_GT(served, 400u);
  EXPECT_EQ(allocator->statistics().classes[2][0][kSizeClasses].reserved_bytes.current, 2 * kMiB);
}

TEST_F(PressureTest, DisplacedBlocksCountWithinTheDevicesLimit) {
  char* moved = host(8 * kMiB);
  to_device(moved);
  allocator->free(moved);
  allocator->limits().set_device_limit(0, 4 * kMiB);
  EXPECT_THROW(device(8 * kMiB), OutOfMemoryError);
  allocator->limits().set_device_limit(0, 8 * kMiB);
  EXPECT_NE(device(8 * kMiB), nullptr);
}

// The pool's pages have a hole of released pages, with a free MiB of the pool on each side.
class HoleTest : public PressureTest {
 protected:
  void SetUp() override {
    PressureTest::SetUp();
    low = device(3 * kMiB);
    char* page_end = device(kMiB);
    char* hole = device(8 * kMiB);
    char* page_begin = device(kMiB);
    ASSERT_EQ(page_end, low + 3 * kMiB);
    ASSERT_EQ(hole, low + 4 * kMiB);
    ASSERT_EQ(page_begin, low + 12 * kMiB);
    high = device(kMiB);
    ASSERT_EQ(high, low + 13 * kMiB);
    for (char* block : {page_end, hole, page_begin}) allocator->free(block);
    allocator->release_cached();
    ASSERT_EQ(allocator->statistics().free_bytes, 2 * kMiB);
    ASSERT_EQ(allocator->statistics().touched_bytes.current, 6 * kMiB);
  }

  char* low = nullptr;
  char* high = nullptr;
};

TEST_F(HoleTest, ABlockIsPutAcrossItFromOneFreePieceToTheOther) {
  EXPECT_EQ(device(10 * kMiB), low + 3 * kMiB);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 14 * kMiB);
  EXPECT_EQ(allocator->statistics().free_bytes, 0u);
}

TEST_F(HoleTest, ABlockBeginsInThePieceBeforeItOrEndsInTheOneBehind) {
  EXPECT_EQ(device(5 * kMiB), low + 3 * kMiB) << "two pages, not three";
  EXPECT_EQ(device(5 * kMiB), low + 8 * kMiB);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 14 * kMiB);
}

TEST_F(HoleTest, PagesOfAnotherPoolAreNotJoined) {
  char* host_block = host(2 * kMiB);
  char* other = device(8 * kMiB, stream(1));
  EXPECT_EQ(other, low + 4 * kMiB) << "the hole alone";
  EXPECT_EQ(allocator->statistics().free_bytes, 2 * kMiB);
  allocator->free(host_block);
}

TEST_F(PressureTest, AfterPressureBlocksOfWholePagesLeaveWholePages) {
  auto place_in_page = [&] {
    char* odd = device(kMiB);
    const std::size_t place = address_of(device(2 * kMiB)) % kPageBytes;
    EXPECT_EQ(address_of(odd) % kPageBytes, 0u);
    return place;
  };
  allocator->free(device(8 * kMiB));
  EXPECT_EQ(place_in_page(), kMiB);
  allocator->free(device(20 * kMiB));
  allocator->free(device(60 * kMiB - 8 * kMiB));
  ASSERT_EQ(allocator->statistics().pressure_rounds, 1u);
  device(kMiB);  // fills a partly used page
  EXPECT_EQ(place_in_page(), 0u);
}

TEST_F(PressureTest, SmallObjectsAreCutOutOfFreeMemoryBeforeTheRequestFails) {
  char* large = device(63 * kMiB);
  char* page_end = device(kMiB);
  EXPECT_EQ(page_end, large + 63 * kMiB);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 64 * kMiB);
  allocator->free(page_end);
  EXPECT_EQ(device(512), page_end);
  EXPECT_EQ(device(512 << 10), page_end + (256 << 10));
  EXPECT_THROW(device(512 << 10), OutOfMemoryError);
}

TEST_F(PressureTest, ReleaseCachedGivesEmptySpansToTheDriverAndKeepsTheRest) {
  char* keep = device(2 * kMiB);
  allocator->free(device(40 * kMiB));
  std::size_t before = machine->allocated_bytes;
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, before - 40 * kMiB);
  EXPECT_TRUE(allocator->find(keep)->live);
  allocator->free(keep);
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
  EXPECT_EQ(allocator->statistics().classes[2][0][1].reserved_bytes.current, 0u);
}

TEST_F(PressureTest, ReleaseCachedDiscardsPagesOfSpansThatStay) {
  device(2 * kMiB);
  allocator->free(device(16 * kMiB));
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 2 * kMiB);
  EXPECT_EQ(allocator->statistics().discarded_bytes, 16 * kMiB);
}

TEST_F(PressureTest, ADisplacedBlockWithAFenceIsReleasedToo) {
  machine->busy = {stream(1)};
  char* block = host(4 * kMiB);
  to_device(block, stream(1));
  allocator->free(block);
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

TEST_F(PressureTest, TheErrorSaysWhichDeviceStreamAndPrivatePoolHoldsWhat) {
  Configuration configuration = small_configuration();
  configuration.budget_bytes = 64 * kMiB;
  start(configuration, 2);
  allocator->allocate(Facade::kDevice, 1, 10 * kMiB, stream(5));
  device(20 * kMiB, stream(1));
  device(8 * kMiB, stream(2));
  char* fenced = device(4 * kMiB, stream(1));
  allocator->record_use(fenced, 0, stream(2));
  allocator->private_pools().begin(
      0, 7, [](StreamHandle of) { return of == stream(3); }, true);
  device(6 * kMiB, stream(3));
  allocator->free(fenced);  // its fence waits for the end of the capture
  const std::string text = std::regex_replace(refusal(40 * kMiB, stream(1)), std::regex(" +"), " ");
  for (const char* part :
       {"device, device 0 34 MiB", "device, device 1 10 MiB", "4 MiB 38 MiB",
        "device 0, stream 0x100: 20 MiB in use", "device 0, stream 0x200: 8 MiB in use",
        "device 1, stream 0x500: 10 MiB in use", "private pool 7",
        "(of a graph or of the program): 6 MiB", "taken: 48 MiB of a budget of 64 MiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  allocator->private_pools().end(0, 7);
  allocator->private_pools().release(0, 7);
}

TEST_F(PressureTest, TheErrorOfARequestLargerThanAnyBlockNamesTheLargestSize) {
  for (const std::size_t size_bytes : {std::size_t{4} << 40, SIZE_MAX}) {
    const std::string text = refusal(size_bytes);
    EXPECT_NE(text.find("A block can have at most 2.00 TiB"), std::string::npos);
    EXPECT_EQ(text.find("address space"), std::string::npos) << text;
  }
}

TEST_F(PressureTest, AdviceNamesWhatTheProgramHasSet) {
  device(60 * kMiB);
  std::string text = refusal(8 * kMiB);
  EXPECT_EQ(text.find("UVMALLOC_"), std::string::npos) << text;
  EXPECT_NE(text.find("To allow more, raise budget_bytes. To need less, request less"),
            std::string::npos)
      << text;
  Configuration configuration = small_configuration();
  configuration.from_variables = true;
  start(configuration);
  device(250 * kMiB);
  text = refusal(8 * kMiB);
  EXPECT_NE(text.find("To allow more, raise UVMALLOC_BUDGET. To need less, use smaller batches"),
            std::string::npos)
      << text;
}

TEST_F(PressureTest, AdviceSaysWhatWasTried) {
  const std::string too_large = refusal(80 * kMiB);
  EXPECT_NE(too_large.find("The request exceeds the limit, so freeing memory cannot help."),
            std::string::npos);
  machine->failures["allocate_managed"] = 100;
  const std::string refused = refusal(40 * kMiB);
  EXPECT_NE(refused.find("The driver refused more memory. All cached memory was given back"),
            std::string::npos)
      << refused;
  EXPECT_EQ(refused.find("budget_bytes"), std::string::npos) << refused;
}

TEST_F(PressureTest, ABudgetInWhichNoPageHasRoomIsRefused) {
  auto make = [&](std::optional<std::size_t> budget_bytes, std::optional<std::size_t> of_devices) {
    Configuration configuration = small_configuration();
    configuration.budget_bytes = budget_bytes;
    configuration.device_budget_bytes = of_devices;
    CachingManagedAllocator made(std::make_unique<testing::FakeRuntime>(machine), configuration);
  };
  EXPECT_THROW(make(1, {}), std::invalid_argument);
  EXPECT_THROW(make(kPageBytes - 1, {}), std::invalid_argument);
  EXPECT_THROW(make({}, 1), std::invalid_argument);
  EXPECT_NO_THROW(make(kPageBytes, kPageBytes));
}

TEST_F(PressureTest, TouchedPagesInWhichNothingLiesAreCounted) {
  DeviceCapabilities without_discard = testing::FakeMachine{}.capabilities;
  without_discard.discard = false;
  start(without_thread_caches(), 1, without_discard);
  auto not_used = [&] { return allocator->statistics().touched_not_used_bytes; };
  char* first = device(4 * kMiB);
  char* second = device(64 << 10);
  EXPECT_EQ(not_used(), 0u);
  allocator->free(first);
  EXPECT_EQ(not_used(), 4 * kMiB) << "in a pool";
  allocator->release_cached();
  EXPECT_EQ(not_used(), 4 * kMiB) << "in a span whose device cannot discard";
  device(4 * kMiB);
  EXPECT_EQ(not_used(), 0u);
  allocator->free(second);
  EXPECT_EQ(not_used(), kPageBytes);
}

// ---- in this order: thread caches, fences, decay, callbacks, release

class PressureOrderTest : public testing::AllocatorTest {
 protected:
  void begin(double decay_seconds = 0) {
    Configuration configuration = small_configuration();
    configuration.budget_bytes = 64 * kMiB;
    configuration.decay_seconds = decay_seconds;
    start(configuration);
    allocator->limits().add_pressure_callback([this] {
      cached_bytes.push_back(allocator->statistics().thread_cached_bytes);
      return false;
    });
  }
  // Leaves about 50 MiB of free blocks in this thread's cache. With `pins_pages`, each page also
  // has a live block, so no other stream can take a page.
  void fill_thread_cache(bool pins_pages = false) {
    std::vector<char*> blocks;
    for (std::size_t size_bytes = 32 << 10; size_bytes < 64 << 10; size_bytes += 512) {
      for (int i = 0; i < 16; ++i) blocks.push_back(device(size_bytes));
    }
    if (pins_pages) device(kMiB);  // fills the rest of the last pages
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (!pins_pages || i % 16 != 0) allocator->free(blocks[i]);
    }
    EXPECT_GT(allocator->statistics().thread_cached_bytes, 40 * kMiB);
  }
  std::vector<std::size_t> cached_bytes;  // in thread caches, one entry for each callback
};

TEST_F(PressureOrderTest, ThreadsKeepNothingWhenASmallRequestMakesCallbacksRun) {
  begin();
  fill_thread_cache(true);
  while (allocator->statistics().touched_bytes.current < 64 * kMiB) device(kPageBytes, stream(9));
  EXPECT_NE(device(512, stream(2)), nullptr) << "a stream that has no memory";
  EXPECT_EQ(cached_bytes, std::vector<std::size_t>{0});
  EXPECT_EQ(allocator->statistics().pressure_rounds, 1u);
}

TEST_F(PressureOrderTest, ThreadsKeepNothingWhenALargeRequestMakesCallbacksRun) {
  begin();
  fill_thread_cache();
  EXPECT_NE(device(60 * kMiB), nullptr);
  EXPECT_EQ(cached_bytes, std::vector<std::size_t>{0});
}

TEST_F(PressureOrderTest, WhatHasIdledLongGoesBeforeCallbacksRun) {
  for (std::size_t wanted : {60 * kMiB, std::size_t{512}}) {
    begin(1);
    allocator->free(host(wanted == 512 ? 62 * kMiB : 40 * kMiB));
    if (wanted == 512) device(2 * kMiB);
    // For decay, this memory has been free for an hour.
    allocator->limits().decay(std::chrono::steady_clock::now() - std::chrono::hours(1));
    EXPECT_NE(device(wanted), nullptr);
    EXPECT_TRUE(cached_bytes.empty()) << wanted;
    EXPECT_EQ(allocator->statistics().pressure_rounds, 0u) << wanted;
  }
}

TEST_F(PressureOrderTest, SmallObjectsThatAnotherThreadKeepsAreTakenBeforeANewPage) {
  begin();
  std::promise<void> kept, taken;
  std::thread other([&] {
    std::vector<char*> blocks;
    while (allocator->statistics().touched_bytes.current <= 2 * kMiB) {
      blocks.push_back(device(4096));
      if (blocks.size() == kPageBytes / 4096) break;
    }
    for (std::size_t i = 0; i < 40; ++i) allocator->free(blocks[i]);
    kept.set_value();
    taken.get_future().wait();
  });
  kept.get_future().wait();
  const std::size_t touched_bytes = allocator->statistics().touched_bytes.current;
  for (int i = 0; i < 40; ++i) EXPECT_NE(device(4096), nullptr);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, touched_bytes);
  taken.set_value();
  other.join();
}

// ---- what a request costs while many streams still work on freed blocks

class ManyFencesTest : public testing::AllocatorTest {
 protected:
  static constexpr std::uintptr_t kStreams = 100;
  void SetUp() override {
    start(without_thread_caches());
    for (std::uintptr_t i = 0; i < kStreams; ++i) {
      blocks.push_back(device(64 << 10, stream(1)));
      allocator->record_use(blocks.back(), 0, stream(100 + i));
      machine->busy.insert(stream(100 + i));
    }
    allocator->free(device(256 << 10, stream(1)));
    for (char* block : blocks) allocator->free(block);
  }
  std::uint64_t calls(const std::string& name) const {
    const auto all = allocator->inspection().runtime_calls();
    const auto found = all.find(name);
    return found != all.end() ? found->second : 0;
  }
  std::vector<char*> blocks;
};

TEST_F(ManyFencesTest, ARequestThatIsMetAsksAboutFewOfThem) {
  const std::uint64_t before = calls("query_event");
  for (int i = 0; i < 10; ++i) allocator->free(device(256 << 10, stream(1)));
  EXPECT_LE(calls("query_event") - before, 80u);
}

TEST_F(ManyFencesTest, AllAreQueriedInTurns) {
  machine->busy.clear();
  for (int i = 0; i < 15; ++i) allocator->free(device(256 << 10, stream(1)));
  const Statistics now = allocator->statistics();
  const ClassStatistics& all = now.classes[static_cast<std::size_t>(Facade::kDevice)][0].back();
  EXPECT_EQ(all.active_blocks.current, 0u);
}

TEST_F(ManyFencesTest, AllAreQueriedBeforeANewPageIsTouched) {
  machine->busy.clear();
  const std::size_t touched_bytes = allocator->statistics().touched_bytes.current;
  EXPECT_NE(device(kStreams * (64 << 10), stream(1)), nullptr);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, touched_bytes);
}

TEST_F(ManyFencesTest, DuringAnUnknownCaptureARequestTriesOneOfThem) {
  machine->capturing = {stream(2)};
  std::vector<char*> used;
  for (int i = 0; i < 500; ++i) {
    used.push_back(device(1024 << 10, stream(1)));
    if (used.size() * kMiB > 200 * kMiB) break;
  }
  for (char* block : used) allocator->record_use(block, 0, stream(2));
  for (char* block : used) allocator->free(block);
  const std::uint64_t before = calls("is_capturing");
  for (int i = 0; i < 10; ++i) allocator->free(device(256 << 10, stream(1)));
  EXPECT_LE(calls("is_capturing") - before, 40u);
  machine->capturing.clear();
  allocator->free(device(256 << 10, stream(1)));
  allocator->free(device(256 << 10, stream(1)));
  EXPECT_NE(device(used.size() * kMiB, stream(1)), nullptr) << "none is lost";
}

// ---- the last bytes

TEST_F(PressureTest, AScalarCanBeReadWhenTheBudgetIsUsedUp) {
  device(64 * kMiB);
  EXPECT_NE(allocator->allocate(Facade::kPinned, 0, 4), nullptr);
  EXPECT_NE(device(4), nullptr);
  EXPECT_NE(host(4), nullptr);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 70 * kMiB);
  EXPECT_THROW(allocator->allocate(Facade::kPinned, 0, 2 * kMiB), OutOfMemoryError)
      << "the pages beyond the budget are for small objects";
}

TEST_F(PressureTest, WhatSmallObjectsTakeBeyondTheBudgetHasAnEnd) {
  device(64 * kMiB);
  std::size_t touched_bytes = 64 * kMiB;
  for (const Facade facade : {Facade::kDevice, Facade::kPinned, Facade::kHost}) {
    EXPECT_THROW(for (;;) allocator->allocate(facade, 0, 4096), OutOfMemoryError);
    touched_bytes += 2 * kMiB;
    EXPECT_EQ(allocator->statistics().touched_bytes.current, touched_bytes)
        << "each facade has a page of its own, and no other one's";
  }
}

TEST_F(PressureTest, APageBeyondTheBudgetThatWasGivenBackCanBeTakenAgain) {
  device(64 * kMiB);
  EXPECT_NE(device(4), nullptr) << "so the budget stays exceeded";
  for (int round = 0; round < 3; ++round) {
    void* scalar = allocator->allocate(Facade::kPinned, 0, 4);
    EXPECT_NE(scalar, nullptr);
    allocator->free(scalar);
    allocator->release_cached();
  }
}

TEST_F(PressureTest, PagesBeyondTheBudgetAreThereAgainOnceItIsKept) {
  char* large = device(64 * kMiB);
  EXPECT_NE(device(4), nullptr);
  allocator->free(large);
  allocator->release_cached();
  device(62 * kMiB);
  EXPECT_THROW(for (;;) device(4096, stream(1)), OutOfMemoryError);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 66 * kMiB);
}

TEST_F(PressureTest, SmallObjectsTakeCachedMemoryBeforePagesBeyondTheBudget) {
  device(60 * kMiB);
  allocator->free(host(4 * kMiB));
  EXPECT_NE(allocator->allocate(Facade::kPinned, 0, 4), nullptr);
  EXPECT_LE(allocator->statistics().touched_bytes.current, 64 * kMiB);
}

// ---- a device's own memory

class SmallDeviceTest : public testing::AllocatorTest {
 protected:
  void SetUp() override {
    Configuration configuration = without_thread_caches();
    configuration.reserve_bytes = testing::FakeMachine{}.total_bytes - 16 * kMiB;
    start(configuration);
  }
  // Frees a block while stream 2 still works on it.
  char* leave_behind_fence(std::size_t size_bytes) {
    char* block = device(size_bytes);
    machine->busy = {stream(2)};
    allocator->record_use(block, 0, stream(2));
    allocator->free(block);
    return block;
  }
};

TEST_F(SmallDeviceTest, FencesAreWaitedForBeforeItsOwnMemoryIsExceeded) {
  char* first = leave_behind_fence(8 * kMiB);
  char* second = leave_behind_fence(8 * kMiB);
  EXPECT_NE(second, first) << "while there is room nobody waits";
  EXPECT_EQ(device(8 * kMiB), first);
  EXPECT_TRUE(machine->busy.empty());
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 16 * kMiB);
}

TEST_F(SmallDeviceTest, FencesAreWaitedForBeforeASmallObjectExceedsIt) {
  for (int page = 0; page < 8; ++page) leave_behind_fence(2 * kMiB);
  EXPECT_NE(device(512), nullptr);
  EXPECT_TRUE(machine->busy.empty());
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 16 * kMiB);
}

TEST_F(SmallDeviceTest, WithoutFencesTheHostsMemoryServesAtOnce) {
  device(16 * kMiB);
  machine->busy = {stream(2)};
  EXPECT_NE(device(8 * kMiB), nullptr);
  EXPECT_FALSE(machine->busy.empty()) << "nothing was waited for";
}

// The driver reports discarded memory as used.
TEST_F(PressureTest, DiscardedMemoryOfADeviceIsFree) {
  device(2 * kMiB);
  char* freed = device(28 * kMiB);
  EXPECT_EQ(allocator->limits().free_bytes(0, {1000 * kMiB, 1040 * kMiB}), 34 * kMiB)
      << "the budget";
  allocator->free(freed);
  allocator->release_cached();
  EXPECT_EQ(allocator->limits().free_bytes(0, {10 * kMiB, 1040 * kMiB}), 38 * kMiB);
  device(28 * kMiB);
  EXPECT_EQ(allocator->limits().free_bytes(0, {10 * kMiB, 1040 * kMiB}), 10 * kMiB)
      << "it is used again";
}

TEST_F(PressureTest, DiscardedMemoryThatOthersHaveTakenIsNotFree) {
  device(4 * kMiB);
  allocator->free(device(28 * kMiB));
  allocator->release_cached();
  EXPECT_EQ(allocator->limits().free_bytes(0, {8 * kMiB, 24 * kMiB}), 20 * kMiB)
      << "no more than the device has beside what is in use";
}

}  // namespace
}  // namespace uvm
