#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include <uvmalloc/use_range.hpp>

#include "allocator/process/framework_bridge.hpp"
#include "tests/support/allocator_fixture.hpp"
#include "tests/support/sanitized.hpp"

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

  static Configuration silent() {
    Configuration settings;
    settings.thrashing = Thrashing::kIgnore;
    return settings;
  }
  void start_small(Policy policy, const Configuration& settings = silent()) {
    allocator.reset();
    machine = std::make_shared<FakeMachine>(devices);
    machine->total_bytes = 64 * kMiB;
    machine->capabilities.batches = has_batches;
    machine->capabilities.finds_pages = can_find_pages;
    Configuration configuration = without_thread_caches();
    configuration.policy = policy;
    configuration.thrashing = settings.thrashing;
    configuration.most_slowdown = settings.most_slowdown;
    configuration.span_bytes = 256 * kMiB;
    allocator = std::make_unique<CachingManagedAllocator>(std::make_unique<FakeRuntime>(machine),
                                                          configuration);
  }
  void SetUp() override { start_small(Policy::kAuto); }
  int devices = 1;
  bool has_batches = false;
  bool can_find_pages = false;

  std::uint64_t reserved_bytes() const {
    const auto figures = allocator->statistics();
    const auto device_memory = static_cast<std::size_t>(Facade::kDevice);
    return figures.classes[device_memory][0][kSizeClasses].reserved_bytes.current;
  }
  std::uint64_t calls_for_hints() const {
    const auto calls = allocator->inspection().runtime_calls();
    std::uint64_t sum = 0;
    for (const char* call : {"advise", "prefetch", "discard", "prefetch_batch", "discard_batch",
                             "discard_and_prefetch_batch"}) {
      if (const auto found = calls.find(call); found != calls.end()) sum += found->second;
    }
    return sum;
  }
  void allocate_pages(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(device(2 * kMiB, stream(1)));
  }
  static constexpr std::uint8_t kBoth = live::kReads | live::kWrites;

  void kernel(std::size_t block, std::uint8_t access = kBoth) {
    EXPECT_TRUE(allocator->kernel_uses().note(blocks[block], 2 * kMiB, stream(1), access));
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
  const auto calls = allocator->inspection().runtime_calls();
  for (int i = 0; i < 20; ++i) step(kPages);
  allocator->kernel_uses().step_boundary();
  for (char*& block : blocks) {
    allocator->free(block);
    block = device(2 * kMiB, stream(1));
  }
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(allocator->inspection().live_figures().kernels, 0u);
  EXPECT_EQ(allocator->inspection().runtime_calls(), calls);
}

TEST_F(LivePlannerTest, ItWantsUsesOnceMemoryIsShort) {
  std::vector<bool> wanted;
  allocator->kernel_uses().set_listener([&](bool wants_uses) { wanted.push_back(wants_uses); });
  allocate_pages(kPages);
  EXPECT_TRUE(wanted.empty());
  allocate_pages(1);
  EXPECT_TRUE(allocator->kernel_uses().wanted());
  EXPECT_EQ(wanted, std::vector<bool>{true});
}

TEST_F(LivePlannerTest, AListenerIsToldThatAnotherTakesItsPlace) {
  std::vector<bool> first;
  std::vector<bool> second;
  allocate_pages(kPages + 1);
  allocator->kernel_uses().set_listener([&](bool wants_uses) { first.push_back(wants_uses); });
  allocator->kernel_uses().set_listener([&](bool wants_uses) { second.push_back(wants_uses); });
  EXPECT_EQ(first, (std::vector<bool>{true, false}));
  EXPECT_EQ(second, std::vector<bool>{true});
}

TEST_F(LivePlannerTest, APolicyWithoutMovesNeverWantsUses) {
  for (const Policy policy : {Policy::kDriver, Policy::kOff}) {
    start_small(policy);
    blocks.clear();
    allocate_pages(kPages + 10);
    EXPECT_FALSE(allocator->kernel_uses().wanted()) << to_string(policy);
  }
}

TEST_F(LivePlannerTest, ARepeatedStepIsServedAheadByAutoAndPlanned) {
  for (const Policy policy : {Policy::kAuto, Policy::kPlanned}) {
    start_small(policy);
    blocks.clear();
    allocate_pages(kPages + 10);
    for (int i = 0; i < 3; ++i) step(blocks.size());
    const live::LiveFigures before = allocator->inspection().live_figures();
    machine->hints.clear();
    step(blocks.size());
    const live::LiveFigures now = allocator->inspection().live_figures();
    EXPECT_EQ(now.missing_pages, before.missing_pages);
    // Ten pages do not fit, so ten arrive on the forward pass and ten on the backward pass.
    EXPECT_EQ(now.brought_pages - before.brought_pages, 20u);
    EXPECT_EQ(now.evicted_pages - before.evicted_pages, 20u);
    EXPECT_EQ(count_hints(HintKind::kPrefetch), 40u);
  }
}

TEST_F(LivePlannerTest, BatchesMoveTheSamePagesByFewerCalls) {
  has_batches = true;
  start_small(Policy::kAuto);
  allocate_pages(kPages + 10);
  for (int i = 0; i < 3; ++i) step(blocks.size());
  const live::LiveFigures before = allocator->inspection().live_figures();
  const std::uint64_t calls = calls_for_hints();
  step(blocks.size());
  const live::LiveFigures now = allocator->inspection().live_figures();
  EXPECT_EQ(now.missing_pages, before.missing_pages);
  EXPECT_EQ(now.brought_pages - before.brought_pages, 20u);
  EXPECT_EQ(now.evicted_pages - before.evicted_pages, 20u);
  EXPECT_EQ(calls_for_hints() - calls, 24u) << "40 without batches";
}

TEST_F(LivePlannerTest, ADriverThatRefusesBatchesGetsOneCallForEachPage) {
  has_batches = true;
  start_small(Policy::kAuto);
  machine->failures["batches"] = 1;
  allocate_pages(kPages + 10);
  for (int i = 0; i < 3; ++i) step(blocks.size());
  const std::uint64_t calls = calls_for_hints();
  machine->hints.clear();
  step(blocks.size());
  EXPECT_EQ(calls_for_hints() - calls, 40u);
  EXPECT_EQ(count_hints(HintKind::kPrefetch), 40u);
  EXPECT_EQ(machine->failures["batches"], 0) << "a batch was tried";
}

TEST_F(LivePlannerTest, AFreedPageIsBackInItsPoolOnceItsDiscardIsSent) {
  has_batches = true;
  start_small(Policy::kAuto);
  for (const char* refused : {"", "discard_batch", "discard"}) {
    machine->failures[refused] = 1;
    allocate_pages(kPages + 10);
    for (int i = 0; i < 2; ++i) step(blocks.size());
    while (!blocks.empty()) {
      allocator->free(blocks.back());
      blocks.pop_back();
    }
    const std::uint64_t reserved = reserved_bytes();
    allocate_pages(kPages + 10);
    EXPECT_EQ(reserved_bytes(), reserved) << refused;
    while (!blocks.empty()) {
      allocator->free(blocks.back());
      blocks.pop_back();
    }
  }
}

TEST_F(LivePlannerTest, PagesThatAreOnlyReadLeaveWithoutACopyAndAreOrdinaryAfterwards) {
  allocate_pages(kPages + 10);
  for (int i = 0; i < 20; ++i) step(blocks.size(), live::kReads);
  machine->hints.clear();
  const live::LiveFigures before = allocator->inspection().live_figures();
  step(blocks.size(), live::kReads);
  EXPECT_EQ(allocator->inspection().live_figures().evicted_pages - before.evicted_pages, 20u);
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
  EXPECT_EQ(allocator->inspection().live_figures().in_place_pages, 10u);
  machine->hints.clear();
  for (int i = 0; i < 5; ++i) circle(live::kReads | live::kOnce);
  EXPECT_TRUE(machine->hints.empty());
  circle(kBoth);
  const auto ended = std::ranges::count_if(machine->hints, [](const Hint& hint) {
    return hint.kind == HintKind::kAdvise && hint.advice == Advice::kUnsetAccessedBy;
  });
  EXPECT_EQ(ended, 10);
}

// The driver has evicted a page that the plan has on the device.
TEST_F(LivePlannerTest, PagesThatStreamsStillUseAreNotCorrected) {
  can_find_pages = true;
  start_small(Policy::kLru);
  allocate_pages(kPages + 1);
  step(2);
  machine->pages_on_host.insert(blocks[0]);
  machine->busy.insert(stream(1));
  const auto wrong_pages = [this] { return allocator->inspection().live_figures().wrong_pages; };
  for (int i = 0; i < 70; ++i) kernel(1);
  EXPECT_EQ(wrong_pages(), 0u);
  machine->finish(stream(1));
  for (int i = 0; i < 70; ++i) kernel(1);
  EXPECT_EQ(wrong_pages(), 1u);
}

TEST_F(LivePlannerTest, AProgramThatLowersItsLimitWhileItRunsHasFewerPagesOnTheDevice) {
  allocate_pages(kPages + 10);
  const auto evicted_by_a_step = [&] {
    const std::uint64_t before = allocator->inspection().live_figures().evicted_pages;
    step(blocks.size());
    return allocator->inspection().live_figures().evicted_pages - before;
  };
  for (int i = 0; i < 4; ++i) step(blocks.size());
  EXPECT_EQ(evicted_by_a_step(), 20u);
  allocator->limits().set_device_limit(0, 20 * kPageBytes);
  for (int i = 0; i < 4; ++i) step(blocks.size());
  EXPECT_EQ(evicted_by_a_step(), 2 * (kPages + 10 - 20));
  allocator->limits().set_device_limit(0, 256 * kMiB);
  for (int i = 0; i < 4; ++i) step(blocks.size());
  EXPECT_EQ(evicted_by_a_step(), 20u);
}

TEST_F(LivePlannerTest, MemoryThatAnotherProgramHasIsNotPlannedWith) {
  constexpr std::size_t kRoom = 20;  // pages that the other program leaves free
  for (std::size_t pages = 1; pages <= kRoom; ++pages) {
    machine->free_bytes[0] = (kRoom - pages) * kPageBytes;
    allocate_pages(1);
    EXPECT_FALSE(allocator->kernel_uses().wanted());
  }
  machine->free_bytes[0] = 0;
  allocate_pages(1);
  EXPECT_TRUE(allocator->kernel_uses().wanted());
  allocate_pages(kRoom - 1);
  for (int i = 0; i < 4; ++i) step(blocks.size());
  const std::uint64_t before = allocator->inspection().live_figures().evicted_pages;
  step(blocks.size());
  EXPECT_EQ(allocator->inspection().live_figures().evicted_pages - before, 2 * kRoom);
}

// Two devices with a fast link. Each has room for 31 pages beside its reserve.
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
  EXPECT_EQ(allocator->inspection().live_figures().pages_to_peers,
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
  for (int i = 0; i < testing::steps(200, 50); ++i) step(blocks.size());
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
  const auto asked = [&] { return allocator->inspection().runtime_calls()["memory_figures"]; };
  const auto kernels = [&] { return allocator->inspection().live_figures().kernels; };
  const std::uint64_t before = asked();
  const std::uint64_t first = kernels();
  while (kernels() < first + 4096) step(blocks.size());
  EXPECT_LE(asked() - before, 5u);
  EXPECT_GE(asked() - before, 3u);
}

TEST_F(PeerPlannerTest, NoPageStaysOnAPeerWhenThePlanEnds) {
  run_short(10);
  // These pages fit, so none is evicted. The driver brings missing pages.
  constexpr std::size_t kFew = 16;
  const auto use_few = [&] {
    for (std::size_t i = 0; i < kFew; ++i) kernel(i);
  };
  use_few();
  std::map<void*, Place> places;
  for (const Hint& hint : machine->hints) places[hint.address] = hint.place;
  std::vector<char*> on_peer;
  std::size_t freed = 0;
  for (std::size_t i = kFew; i < blocks.size(); ++i) {
    if (places[blocks[i]] == Place::device(1)) {
      on_peer.push_back(blocks[i]);
    } else if (freed < 10) {
      allocator->free(blocks[i]);
      ++freed;
    }
  }
  ASSERT_GE(on_peer.size(), 3u);
  allocator->release_cached();
  while (allocator->kernel_uses().wanted()) use_few();
  places.clear();
  for (const Hint& hint : machine->hints) places[hint.address] = hint.place;
  for (char* block : on_peer) EXPECT_EQ(places[block], Place::host());
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
  const live::LiveFigures before = allocator->inspection().live_figures();
  kernel(0);
  const live::LiveFigures now = allocator->inspection().live_figures();
  EXPECT_EQ(now.discarded_pages - before.discarded_pages, 1u);
  EXPECT_EQ(now.evicted_pages, before.evicted_pages);
  EXPECT_EQ(allocator->inspection().runtime_calls()["discard"], 1u);
  EXPECT_EQ(device(2 * kMiB, stream(1)), freed) << "it is free again";
  allocator->inspection().check_invariants();
}

TEST_F(LivePlannerTest, NothingIsSentForAStreamThatIsCaptured) {
  start_small(Policy::kLru);
  allocate_pages(kPages + 4);
  machine->capturing = {stream(1)};
  machine->hints.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) kernel(i);
  EXPECT_TRUE(machine->hints.empty());
  EXPECT_EQ(allocator->inspection().live_figures().kernels, 0u);
  machine->capturing.clear();
}

TEST_F(LivePlannerTest, ThePlanEndsWhenNothingMovesForLongAndAllFitsAgain) {
  allocate_pages(kPages + 1);
  ASSERT_TRUE(allocator->kernel_uses().wanted());
  const auto calm_phase = [&] {
    for (int i = 0; i < 9000; ++i) kernel(static_cast<std::size_t>(i) % 4);
  };
  calm_phase();
  EXPECT_TRUE(allocator->kernel_uses().wanted()) << "the page that does not fit may be used again";
  allocator->free(blocks.back());
  blocks.pop_back();
  allocator->release_cached();
  calm_phase();
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  allocate_pages(1);
  EXPECT_TRUE(allocator->kernel_uses().wanted()) << "it begins again";
}

TEST_F(LivePlannerTest, AStepIsServedAsBeforeAfterALongPhaseThatFits) {
  for (const bool allocates : {false, true}) {
    start_small(Policy::kAuto);
    blocks.clear();
    allocate_pages(kPages + 10);
    const auto moved_by_steps = [&] {
      const live::LiveFigures before = allocator->inspection().live_figures();
      for (int i = 0; i < 20; ++i) {
        if (allocates) {
          allocator->free(blocks[0]);
          blocks[0] = device(2 * kMiB, stream(1));
        }
        step(blocks.size());
      }
      const live::LiveFigures now = allocator->inspection().live_figures();
      EXPECT_EQ(now.missing_pages, before.missing_pages);
      return now.brought_pages - before.brought_pages;
    };
    moved_by_steps();
    const std::uint64_t moved = moved_by_steps();
    for (int i = 0; i < testing::steps(30000, 10000); ++i) kernel(static_cast<std::size_t>(i) % 8);
    EXPECT_GE(moved_by_steps(), moved / 2) << "pages come ahead of their uses";
  }
}

// Two devices, each with a plan.
class TwoPlansTest : public LivePlannerTest {
 protected:
  void SetUp() override {
    devices = 2;
    start_small(Policy::kAuto);
  }
};

TEST_F(TwoPlansTest, ThePlanOfOneDeviceEndsWithoutTheOther) {
  std::vector<bool> wanted;
  allocator->kernel_uses().set_listener([&](bool wants_uses) { wanted.push_back(wants_uses); });
  allocate_pages(kPages + 10);
  std::vector<void*> others;
  for (std::size_t i = 0; i < kPages + 1; ++i)
    others.push_back(allocator->allocate(Facade::kDevice, 1, kPageBytes, stream(2)));
  while (others.size() > 4) {
    allocator->free(others.back());
    others.pop_back();
  }
  allocator->release_cached();
  for (int i = 0; i < 9000; ++i)
    allocator->kernel_uses().note(others[0], kPageBytes, stream(2), kBoth);
  EXPECT_EQ(wanted, std::vector<bool>{true});
  const live::LiveFigures before = allocator->inspection().live_figures();
  for (int i = 0; i < 5; ++i) step(blocks.size());
  EXPECT_GT(allocator->inspection().live_figures().evicted_pages, before.evicted_pages);
  const std::uint64_t kernels = allocator->inspection().live_figures().kernels;
  allocator->kernel_uses().note(others[0], kPageBytes, stream(2), kBoth);
  EXPECT_EQ(allocator->inspection().live_figures().kernels, kernels) << "nothing is planned there";
}

// The steps of these programs use ten pages more than fit. On each of the two passes ten pages
// arrive and ten are evicted: 80 MiB, an estimated 7 ms.
class ThrashingTest : public LivePlannerTest {
 protected:
  static constexpr std::chrono::milliseconds kFast{20};  // 1.5 times the time with enough memory
  static constexpr std::chrono::milliseconds kSlow{10};  // 3.3 times the time

  void begin(Configuration settings) {
    start_small(Policy::kPlanned, settings);
    machine->now = std::chrono::nanoseconds(0);
    blocks.clear();
    allocate_pages(kPages + 10);
    steps(10, 10 * kFast);
  }
  void steps(int count, std::chrono::nanoseconds each) {
    const std::size_t kernels = 2 * blocks.size();
    for (int i = 0; i < count; ++i) {
      for (std::size_t number = 0; number < kernels; ++number) {
        *machine->now += each / kernels;
        kernel(std::min(number, kernels - 1 - number));
      }
      allocator->free(device(kMiB, stream(1)));
    }
  }
  // Returns whether a request fails within `count` steps.
  bool fails_within(int count, std::chrono::nanoseconds each) {
    try {
      steps(count, each);
    } catch (const OutOfMemoryError& error) {
      text = error.what();
      return true;
    }
    return false;
  }
  // Acts like a search: the largest request grows.
  void grow_requests() {
    for (std::size_t size_bytes = kMiB; size_bytes <= 40 * kMiB; size_bytes *= 2)
      allocator->free(device(size_bytes, stream(1)));
  }
  std::string text;
};

TEST_F(ThrashingTest, TheProgramGetsAnErrorEachTimeItThrashesIfItAsksForThem) {
  Configuration settings;
  settings.thrashing = Thrashing::kFail;
  begin(settings);
  EXPECT_FALSE(fails_within(20, kFast));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(fails_within(5, kSlow)) << "the search goes on with less, which still is too much";
    EXPECT_NE(text.find("thrashing"), std::string::npos) << text;
  }
  EXPECT_FALSE(fails_within(20, kFast));
}

TEST_F(ThrashingTest, TheLimitOfTheSlowdownIsTheProgramsOwn) {
  Configuration settings;
  settings.most_slowdown = 4;
  begin(settings);
  EXPECT_FALSE(fails_within(20, kSlow));
  settings.most_slowdown = 1.2;
  begin(settings);
  EXPECT_TRUE(fails_within(5, kFast));
  EXPECT_NE(text.find("raise most_slowdown"), std::string::npos) << text;
}

TEST_F(ThrashingTest, WithoutASettingAProgramThatSearchesGetsTheErrorAndNoOther) {
  SearchSign sign = SearchSign::kNone;
  const auto begin_with = [&](SearchSign now, Configuration settings = {}) {
    begin(settings);
    sign = now;
    FrameworkBridge(*allocator).set_search_signs([&sign] { return sign; });
  };
  begin_with(SearchSign::kNone);
  grow_requests();
  EXPECT_FALSE(fails_within(10, kSlow)) << "requests grow in any program";
  begin_with(SearchSign::kCatchesErrors);
  EXPECT_FALSE(fails_within(10, kSlow)) << "many programs tell of errors";
  grow_requests();
  EXPECT_TRUE(fails_within(5, kSlow));
  EXPECT_NE(text.find("search"), std::string::npos) << text;
  begin_with(SearchSign::kNone);
  grow_requests();
  EXPECT_THROW(device(400 * kMiB, stream(1)), OutOfMemoryError);
  EXPECT_TRUE(fails_within(5, kSlow)) << "it has gone on after an error";
  begin_with(SearchSign::kSearches);
  EXPECT_TRUE(fails_within(5, kSlow));
  Configuration unlimited;
  unlimited.most_slowdown = std::numeric_limits<double>::infinity();
  begin_with(SearchSign::kSearches, unlimited);
  EXPECT_FALSE(fails_within(10, kSlow));
}

TEST_F(ThrashingTest, TheWarningComesEachTimeThrashingBegins) {
  ::testing::internal::CaptureStderr();
  begin({});
  for (int i = 0; i < 2; ++i) {
    steps(20, kSlow);
    steps(10, 10 * kFast);
  }
  const std::string lines = ::testing::internal::GetCapturedStderr();
  std::size_t warnings = 0;
  for (std::size_t at = lines.find("too little memory"); at != std::string::npos;
       at = lines.find("too little memory", at + 1)) {
    ++warnings;
  }
  EXPECT_EQ(warnings, 2u) << lines;
}

TEST_F(LivePlannerTest, InAKnownSearchAndAtAnUnitLimitNothingSpills) {
  const auto most_pages = [&](Configuration settings, SearchSign sign) {
    start_small(Policy::kAuto, settings);
    FrameworkBridge(*allocator).set_search_signs([sign] { return sign; });
    std::vector<void*> taken;
    try {
      while (taken.size() < 60) taken.push_back(device(2 * kMiB, stream(1)));
    } catch (const OutOfMemoryError& error) {
      EXPECT_NE(std::string(error.what()).find("most_slowdown"), std::string::npos) << error.what();
    }
    allocator->free(device(512, stream(1)));  // a scalar can still be read
    for (void* page : taken) allocator->free(page);
    return taken.size();
  };
  Configuration settings;
  EXPECT_EQ(most_pages(settings, SearchSign::kNone), 60u);
  EXPECT_EQ(most_pages(settings, SearchSign::kCatchesErrors), 60u);
  EXPECT_EQ(most_pages(settings, SearchSign::kSearches), kPages);
  settings.most_slowdown = 1;
  EXPECT_EQ(most_pages(settings, SearchSign::kNone), kPages);
  settings.most_slowdown = 2;
  EXPECT_EQ(most_pages(settings, SearchSign::kSearches), 60u);
}

TEST_F(LivePlannerTest, AChildReadsFiguresWhileAThreadOfItsParentPlans) {
  start_small(Policy::kLru);
  allocate_pages(kPages + 4);
  for (std::size_t i = 0; i < blocks.size(); ++i) kernel(i);
  const live::LiveFigures before = allocator->inspection().live_figures();
  std::atomic<bool> is_inside = false;
  std::atomic<bool> goes_on = false;
  machine->before_prefetch = [&] {
    is_inside = true;
    while (!goes_on) std::this_thread::yield();
  };
  std::thread planning([&] { kernel(0); });
  while (!is_inside) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends the child if it hangs
    allocator->kernel_uses().set_listener({});
    _exit(allocator->inspection().live_figures().evicted_pages >= before.evicted_pages ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  goes_on = true;
  planning.join();
}

TEST_F(LivePlannerTest, ThreadsMayAllocateFreeAndUseMemoryWhileMovesArePlanned) {
  start_small(Policy::kLru);
  allocate_pages(kPages + 4);
  constexpr std::uint64_t kRounds = 1500;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random(number);
      std::vector<char*> own;
      const auto free_last = [&] {
        if (own.back()[0] != static_cast<char>(number)) ++wrong;
        if (allocator->free(own.back()) != FreeResult::kFreed) ++wrong;
        own.pop_back();
      };
      for (std::uint64_t i = 0; i < kRounds; ++i) {
        const std::size_t what = random() % 4;
        if (what == 0 && own.size() < 8) {
          own.push_back(device((1 + random() % 4) * kMiB, stream(1)));
          own.back()[0] = static_cast<char>(number);
        }
        if (what == 1 && !own.empty()) free_last();
        char* const used =
            own.empty() ? blocks[random() % blocks.size()] : own[random() % own.size()];
        if (!allocator->kernel_uses().note(used, kMiB, stream(1 + number % 2), live::kWrites))
          ++wrong;
      }
      while (!own.empty()) free_last();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0) << "blocks with another's bytes, or calls that failed";
  EXPECT_EQ(allocator->inspection().live_figures().kernels, 4 * kRounds);
  allocator->inspection().check_invariants();
}

// The driver's calls for moves may take long, and some wait for the device.
TEST_F(LivePlannerTest, AFreeDoesNotWaitForMovesThatAreBeingSent) {
  allocate_pages(kPages + 1);
  step(kPages + 1);
  bool was_freed = false;
  machine->before_prefetch = [&] {
    auto freed = std::async(std::launch::async, [&] { allocator->free(blocks.back()); });
    was_freed = freed.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    machine->before_prefetch = nullptr;
    if (!was_freed) std::thread([f = std::move(freed)]() mutable { f.wait(); }).detach();
  };
  kernel(0);
  kernel(kPages);
  EXPECT_TRUE(was_freed);
}

}  // namespace
}  // namespace uvm
