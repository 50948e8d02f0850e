#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include <uvmalloc/allocator/uvmalloc.h>

#include <uvmalloc/allocator/base/work_counters.hpp>
#include <uvmalloc/hints/live/use_range.hpp>

#include "support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::AllocatorTest;
using testing::FakeMachine;
using testing::FakeRuntime;
using testing::kMiB;
using testing::stream;

// A device with room for 31 pages of 2 MiB beside the reserve.
class LivePlannerTest : public AllocatorTest {
 protected:
  static constexpr std::size_t kPages = 31;

  void start_small(Policy policy, Thrashing thrashing = Thrashing::kIgnore) {
    allocator.reset();
    machine = std::make_shared<FakeMachine>(devices);
    machine->total_bytes = 64 * kMiB;
    Configuration configuration = without_thread_caches();
    configuration.policy = policy;
    configuration.thrashing = thrashing;
    configuration.span_bytes = 256 * kMiB;
    allocator = std::make_unique<CachingManagedAllocator>(std::make_unique<FakeRuntime>(machine),
                                                          configuration);
  }
  void SetUp() override { start_small(Policy::kAuto); }
  int devices = 1;

  void allocate_pages(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(device(2 * kMiB, stream(1)));
  }
  static constexpr std::uint8_t kBoth = live::kReads | live::kWrites;

  void kernel(std::size_t block, std::uint8_t access = kBoth) {
    EXPECT_TRUE(allocator->note_use(blocks[block], 2 * kMiB, stream(1), access));
  }
  void step(std::size_t count, std::uint8_t access = kBoth) {
    for (std::size_t i = 0; i < count; ++i) kernel(i, access);
    for (std::size_t i = count; i-- > 0;) kernel(i, access);
  }
  std::ptrdiff_t prefetches_to_host() const {
    return std::ranges::count_if(machine->hints, [](const Hint& hint) {
      return hint.kind == HintKind::kPrefetch && hint.place == Place::host();
    });
  }
  std::vector<char*> blocks;
};

TEST_F(LivePlannerTest, NothingIsCalledOrCountedWhileAllFits) {
  allocate_pages(kPages);
  const auto calls = allocator->runtime_calls();
  for (int i = 0; i < 20; ++i) step(kPages);
  allocator->step_boundary();
  for (char*& block : blocks) {
    allocator->free(block);
    block = device(2 * kMiB, stream(1));
  }
  EXPECT_FALSE(allocator->wants_uses());
  EXPECT_EQ(allocator->live_figures().kernels, 0u);
  EXPECT_EQ(allocator->runtime_calls(), calls);
}

#ifndef NDEBUG
TEST_F(LivePlannerTest, AMoveTakesTheStateLockOnceWhileAllFits) {
  char* block = device(2 * kMiB, stream(1));
  ASSERT_NE(allocator->move(block, {Place::device(0), Place::host(), 0, stream(1)}), nullptr);
  work_counters = {};
  ASSERT_NE(allocator->move(block, {Place::host(), Place::device(0), 0, stream(1)}), nullptr);
  EXPECT_EQ(work_counters.state_cycles, 1u);
}
#endif

TEST_F(LivePlannerTest, ItWantsUsesOnceMemoryIsShort) {
  std::vector<bool> wanted;
  allocator->set_use_listener([&](bool wants_uses) { wanted.push_back(wants_uses); });
  allocate_pages(kPages);
  EXPECT_TRUE(wanted.empty());
  allocate_pages(1);
  EXPECT_TRUE(allocator->wants_uses());
  EXPECT_EQ(wanted, std::vector<bool>{true});
}

TEST_F(LivePlannerTest, AListenerIsToldThatAnotherTakesItsPlace) {
  std::vector<bool> first;
  std::vector<bool> second;
  allocate_pages(kPages + 1);
  allocator->set_use_listener([&](bool wants_uses) { first.push_back(wants_uses); });
  allocator->set_use_listener([&](bool wants_uses) { second.push_back(wants_uses); });
  EXPECT_EQ(first, (std::vector<bool>{true, false}));
  EXPECT_EQ(second, std::vector<bool>{true});
}

TEST_F(LivePlannerTest, APolicyWithoutMovesNeverWantsUses) {
  for (const Policy policy : {Policy::kDriver, Policy::kOff}) {
    start_small(policy);
    blocks.clear();
    allocate_pages(kPages + 10);
    EXPECT_FALSE(allocator->wants_uses()) << to_string(policy);
  }
}

TEST_F(LivePlannerTest, ARepeatedStepIsServedAheadByAutoAndPlanned) {
  for (const Policy policy : {Policy::kAuto, Policy::kPlanned}) {
    start_small(policy);
    blocks.clear();
    allocate_pages(kPages + 10);
    for (int i = 0; i < 3; ++i) step(blocks.size());
    const live::LiveFigures before = allocator->live_figures();
    machine->hints.clear();
    step(blocks.size());
    const live::LiveFigures now = allocator->live_figures();
    EXPECT_EQ(now.missing_pages, before.missing_pages);
    // Ten pages are too many, on the way there and on the way back.
    EXPECT_EQ(now.brought_pages - before.brought_pages, 20u);
    EXPECT_EQ(now.evicted_pages - before.evicted_pages, 20u);
    EXPECT_EQ(count_hints(HintKind::kPrefetch), 40u);
  }
}

TEST_F(LivePlannerTest, PagesThatAreOnlyReadLeaveWithoutACopyAndAreOrdinaryAfterwards) {
  allocate_pages(kPages + 10);
  for (int i = 0; i < 20; ++i) step(blocks.size(), live::kReads);
  machine->hints.clear();
  const live::LiveFigures before = allocator->live_figures();
  step(blocks.size(), live::kReads);
  EXPECT_EQ(allocator->live_figures().evicted_pages - before.evicted_pages, 20u);
  EXPECT_EQ(count_hints(HintKind::kPrefetch), 20u);
  EXPECT_EQ(prefetches_to_host(), 0);
  machine->hints.clear();
  step(blocks.size());
  std::set<void*> written;
  for (const Hint& hint : machine->hints) {
    if (hint.kind == HintKind::kAdvise && hint.advice == Advice::kUnsetReadMostly)
      written.insert(hint.address);
  }
  EXPECT_GE(written.size(), 10u);
  machine->hints.clear();
  for (int i = 0; i < 3; ++i) step(blocks.size());
  EXPECT_EQ(count_hints(HintKind::kAdvise), 0u);
  EXPECT_EQ(prefetches_to_host(), 60);
}

TEST_F(LivePlannerTest, PagesThatAreReadOnceAndDoNotFitAreReadOnTheHostUntilTheyAreWritten) {
  allocate_pages(kPages + 10);
  const auto circle = [&](std::uint8_t access) {
    for (std::size_t i = 0; i < blocks.size(); ++i) kernel(i, access);
  };
  for (int i = 0; i < 5; ++i) circle(live::kReads | live::kOnce);
  EXPECT_EQ(allocator->live_figures().in_place_pages, 10u);
  machine->hints.clear();
  for (int i = 0; i < 5; ++i) circle(live::kReads | live::kOnce);
  EXPECT_TRUE(machine->hints.empty());
  circle(kBoth);
  const auto ended = std::ranges::count_if(machine->hints, [](const Hint& hint) {
    return hint.kind == HintKind::kAdvise && hint.advice == Advice::kUnsetAccessedBy;
  });
  EXPECT_EQ(ended, 10);
}

TEST_F(LivePlannerTest, AProgramThatLowersItsLimitWhileItRunsHasFewerPagesOnTheDevice) {
  allocate_pages(kPages + 10);
  const auto evicted_by_a_step = [&] {
    const std::uint64_t before = allocator->live_figures().evicted_pages;
    step(blocks.size());
    return allocator->live_figures().evicted_pages - before;
  };
  for (int i = 0; i < 4; ++i) step(blocks.size());
  EXPECT_EQ(evicted_by_a_step(), 20u);
  allocator->set_device_limit(0, 20 * kPageBytes);
  for (int i = 0; i < 4; ++i) step(blocks.size());
  EXPECT_EQ(evicted_by_a_step(), 2 * (kPages + 10 - 20));
  allocator->set_device_limit(0, 256 * kMiB);
  for (int i = 0; i < 4; ++i) step(blocks.size());
  EXPECT_EQ(evicted_by_a_step(), 20u);
}

TEST_F(LivePlannerTest, MemoryThatAnotherProgramHasIsNotPlannedWith) {
  constexpr std::size_t kRoom = 20;  // pages that the other program leaves
  for (std::size_t pages = 1; pages <= kRoom; ++pages) {
    machine->free_bytes[0] = (kRoom - pages) * kPageBytes;
    allocate_pages(1);
    EXPECT_FALSE(allocator->wants_uses());
  }
  machine->free_bytes[0] = 0;
  allocate_pages(1);
  EXPECT_TRUE(allocator->wants_uses());
  allocate_pages(kRoom - 1);
  for (int i = 0; i < 4; ++i) step(blocks.size());
  const std::uint64_t before = allocator->live_figures().evicted_pages;
  step(blocks.size());
  EXPECT_EQ(allocator->live_figures().evicted_pages - before, 2 * kRoom);
}

// Two devices with room for 31 pages each beside their reserve, over a fast link.
class PeerPlannerTest : public LivePlannerTest {
 protected:
  void SetUp() override {
    devices = 2;
    start_small(Policy::kPlanned);
    machine->has_fast_links = true;
  }
  std::ptrdiff_t prefetches_to(Place place) const {
    return std::ranges::count_if(machine->hints, [&](const Hint& hint) {
      return hint.kind == HintKind::kPrefetch && hint.place == place;
    });
  }
  void run_short(int steps) {
    if (blocks.empty()) allocate_pages(kPages + 10);
    machine->hints.clear();
    for (int i = 0; i < steps; ++i) step(blocks.size());
  }
};

TEST_F(PeerPlannerTest, PagesLeaveToHalfOfWhatAPeerHasFreeAndOthersToTheHost) {
  machine->free_bytes[1] = 8 * kPageBytes;
  run_short(10);
  std::set<void*> on_peer;
  std::size_t most = 0;
  for (const Hint& hint : machine->hints) {
    if (hint.place == Place::device(1)) {
      on_peer.insert(hint.address);
    } else {
      on_peer.erase(hint.address);
    }
    most = std::max(most, on_peer.size());
  }
  EXPECT_EQ(most, 4u);
  EXPECT_GT(prefetches_to(Place::host()), 0);
  EXPECT_EQ(allocator->live_figures().pages_to_peers,
            static_cast<std::uint64_t>(prefetches_to(Place::device(1))));
}

TEST_F(PeerPlannerTest, WithRoomForAllNoPageLeavesToTheHost) {
  run_short(10);
  EXPECT_GT(prefetches_to(Place::device(1)), 100);
  EXPECT_EQ(prefetches_to_host(), 0);
}

TEST_F(PeerPlannerTest, ASlowLinkAndADeviceThatTheProcessDoesNotUseAndASharedOneGetNothing) {
  machine->has_fast_links = false;
  run_short(5);
  EXPECT_GT(prefetches_to_host(), 0);
  EXPECT_EQ(prefetches_to(Place::device(1)), 0);
  blocks.clear();
  SetUp();
  machine->unused_devices = {1};
  run_short(5);
  EXPECT_GT(prefetches_to_host(), 0);
  EXPECT_EQ(prefetches_to(Place::device(1)), 0);
}

TEST_F(PeerPlannerTest, APeerThatNeedsItsMemoryGetsItBeforeItsNextKernelAndKeepsIt) {
  run_short(10);
  ASSERT_GT(prefetches_to(Place::device(1)), 0);
  machine->hints.clear();
  for (std::size_t i = 0; i < kPages; ++i)
    ASSERT_NE(allocator->allocate(Facade::kDevice, 1, kPageBytes, stream(2)), nullptr);
  EXPECT_EQ(prefetches_to_host(), 10) << "all that were there";
  for (int i = 0; i < 200; ++i) step(blocks.size());
  EXPECT_EQ(prefetches_to(Place::device(1)), static_cast<std::ptrdiff_t>(kPages))
      << "its own alone";
}

TEST_F(PeerPlannerTest, ADeviceWhoseMovesArePlannedIsNoPeer) {
  run_short(10);
  ASSERT_GT(prefetches_to(Place::device(1)), 0);
  for (std::size_t i = 0; i < kPages + 1; ++i)
    ASSERT_NE(allocator->allocate(Facade::kDevice, 1, kPageBytes, stream(2)), nullptr);
  machine->hints.clear();
  run_short(5);
  EXPECT_EQ(prefetches_to(Place::device(1)), 0);
}

TEST_F(PeerPlannerTest, TheDriverIsAskedForAPeersMemoryOnceInAThousandKernels) {
  run_short(10);
  const auto asked = [&] { return allocator->runtime_calls()["memory_figures"]; };
  const auto kernels = [&] { return allocator->live_figures().kernels; };
  const std::uint64_t before = asked();
  const std::uint64_t first = kernels();
  while (kernels() < first + 4096) step(blocks.size());
  EXPECT_LE(asked() - before, 5u);
  EXPECT_GE(asked() - before, 3u);
}

TEST_F(PeerPlannerTest, NoPageStaysOnAPeerWhenThePlanEnds) {
  run_short(10);
  std::map<void*, Place> places;
  // Of pages that fit no page has to leave. The driver brings those that are not there.
  constexpr std::size_t kFew = 16;
  while (allocator->wants_uses()) {
    for (std::size_t i = 0; i < kFew; ++i) kernel(i);
  }
  for (const Hint& hint : machine->hints) places[hint.address] = hint.place;
  for (std::size_t i = 0; i < kFew; ++i) places.erase(blocks[i]);
  EXPECT_GT(places.size(), 10u);
  for (const auto& [address, place] : places) EXPECT_NE(place, Place::device(1));
}

TEST_F(LivePlannerTest, LruMovesAtTheKernelThatNeedsThePage) {
  start_small(Policy::kLru);
  allocate_pages(kPages + 1);
  for (std::size_t i = 0; i < blocks.size(); ++i) kernel(i);
  machine->hints.clear();
  kernel(0);
  ASSERT_EQ(machine->hints.size(), 2u);
  EXPECT_EQ(machine->hints[0].place, Place::host());
  EXPECT_EQ(machine->hints[0].address, blocks[1]);
  EXPECT_EQ(machine->hints[1].place, Place::device(0));
  EXPECT_EQ(machine->hints[1].address, blocks[0]);
}

TEST_F(LivePlannerTest, OnlyFreeMemoryIsDiscarded) {
  start_small(Policy::kLru);
  allocate_pages(kPages + 4);
  for (std::size_t i = 0; i < blocks.size(); ++i) kernel(i);
  char* const freed = blocks[20];
  allocator->free(freed);
  const live::LiveFigures before = allocator->live_figures();
  kernel(0);
  const live::LiveFigures now = allocator->live_figures();
  EXPECT_EQ(now.discarded_pages - before.discarded_pages, 1u);
  EXPECT_EQ(now.evicted_pages, before.evicted_pages);
  EXPECT_EQ(allocator->runtime_calls()["discard"], 1u);
  EXPECT_EQ(device(2 * kMiB, stream(1)), freed) << "it is free again";
  allocator->check_invariants();
}

TEST_F(LivePlannerTest, NothingIsSentForAStreamThatIsCaptured) {
  start_small(Policy::kLru);
  allocate_pages(kPages + 4);
  machine->capturing = {stream(1)};
  machine->hints.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) kernel(i);
  EXPECT_TRUE(machine->hints.empty());
  EXPECT_EQ(allocator->live_figures().kernels, 0u);
  machine->capturing.clear();
}

TEST_F(LivePlannerTest, ThePlanEndsWhenNothingMovesForLong) {
  allocate_pages(kPages + 1);
  ASSERT_TRUE(allocator->wants_uses());
  for (int i = 0; i < 9000; ++i) kernel(static_cast<std::size_t>(i) % 4);
  EXPECT_FALSE(allocator->wants_uses());
  allocate_pages(1);
  EXPECT_TRUE(allocator->wants_uses()) << "it begins again";
}

TEST_F(LivePlannerTest, AThrashingProgramGetsACatchableErrorIfItAsksForOne) {
  start_small(Policy::kPlanned, Thrashing::kFail);
  allocate_pages(kPages + 10);
  machine->now = std::chrono::nanoseconds(0);
  const auto steps = [&](int count, std::chrono::milliseconds each) {
    for (int i = 0; i < count; ++i) {
      step(blocks.size());
      *machine->now += each;
      allocator->free(device(kMiB, stream(1)));
    }
  };
  // Ten pages come and ten leave on each way: 80 MiB, which take 7 ms.
  steps(20, std::chrono::milliseconds(20));
  try {
    steps(20, std::chrono::milliseconds(10));
    ADD_FAILURE() << "most of the time goes into moves";
  } catch (const OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("thrashing"), std::string::npos) << error.what();
  }
  allocator->free(device(kMiB, stream(1)));
}

TEST_F(LivePlannerTest, ThreadsMayAllocateFreeAndUseMemoryWhileMovesArePlanned) {
  start_small(Policy::kLru);
  allocate_pages(kPages + 4);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random(number);
      std::vector<char*> own;
      for (int i = 0; i < 1500; ++i) {
        const std::size_t what = random() % 4;
        if (what == 0 && own.size() < 8)
          own.push_back(device((1 + random() % 4) * kMiB, stream(1)));
        if (what == 1 && !own.empty()) {
          allocator->free(own.back());
          own.pop_back();
        }
        char* const used =
            own.empty() ? blocks[random() % blocks.size()] : own[random() % own.size()];
        allocator->note_use(used, kMiB, stream(1 + number % 2), live::kWrites);
      }
      for (char* block : own) allocator->free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(allocator->live_figures().kernels, 0u);
}

TEST_F(LivePlannerTest, TheCInterfaceSaysWhatIsWrong) {
  auto* handle = reinterpret_cast<uvmalloc_allocator*>(allocator.get());
  char outside = 0;
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 0), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(uvmalloc_last_error()),
            "uvmalloc_note_use: the access is 0; accepted: 1 (read), 2 (write), 3 (both), and 4 "
            "more where each byte is touched once");
  for (const int access : {-1, 4, 8, 9})
    EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, access),
              UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 5), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_note_use(nullptr, &outside, 1, nullptr, 1), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 1), UVMALLOC_OK) << "nothing is short";
  allocate_pages(kPages + 1);
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 1), UVMALLOC_ERROR_NOT_OURS);
  EXPECT_EQ(uvmalloc_note_use(handle, blocks[0] + 100, 1, stream(1), 3), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_step_boundary(handle), UVMALLOC_OK);
  EXPECT_EQ(allocator->live_figures().kernels, 1u);
}

TEST_F(LivePlannerTest, ManyUsesOfOneLaunchAreNotedByTheCInterface) {
  auto* handle = reinterpret_cast<uvmalloc_allocator*>(allocator.get());
  char outside = 0;
  const uvmalloc_use foreign = {&outside, 1, 3};
  EXPECT_EQ(uvmalloc_note_uses(handle, &foreign, 1, nullptr, 0), UVMALLOC_OK) << "nothing is short";
  allocate_pages(kPages + 1);
  const uvmalloc_use uses[] = {{blocks[0] + 100, kMiB, 1}, {blocks[1], kMiB, 3}, foreign};
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 2, stream(1), UVMALLOC_LAUNCH_KERNEL), UVMALLOC_OK);
  EXPECT_EQ(allocator->live_figures().kernels, 1u) << "not one for each range";
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 2, stream(1), UVMALLOC_LAUNCH_GRAPH), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_note_uses(handle, nullptr, 0, stream(1), UVMALLOC_LAUNCH_GRAPH), UVMALLOC_OK);
  EXPECT_EQ(allocator->live_figures().kernels, 2u);
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 3, stream(1), 0), UVMALLOC_ERROR_NOT_OURS);
  EXPECT_EQ(uvmalloc_note_uses(handle, nullptr, 1, stream(1), 0), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 1, stream(1), 2), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(uvmalloc_last_error()),
            "uvmalloc_note_uses: the launch is 2; accepted: 0 (a kernel), 1 (a graph)");
  const uvmalloc_use nothing = {blocks[0], 1, 0};
  EXPECT_EQ(uvmalloc_note_uses(handle, &nothing, 1, nullptr, 0), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(allocator->live_figures().kernels, 2u) << "nothing that is wrong was noted";
}

}  // namespace
}  // namespace uvm
