// Half of the idle memory is released in every half-life. The time is an argument of each call.
#include "allocator/reclaim/decay.hpp"

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using std::chrono::seconds;
using testing::kMiB;

constexpr Decay::Time kStart{};

TEST(Decay, HalfOfWhatStayedFreeIsDueAfterAHalfLife) {
  Decay decay(seconds(8));
  EXPECT_EQ(decay.due(kStart, 1000), 0u);
  EXPECT_EQ(decay.due(kStart + seconds(8), 1000), 500u);
  decay.gave_back(500);
  EXPECT_EQ(decay.due(kStart + seconds(16), 500), 250u);
}

TEST(Decay, WhatDidNotGoStaysDue) {
  Decay decay(seconds(8));
  decay.due(kStart, 1000);
  EXPECT_EQ(decay.due(kStart + seconds(8), 1000), 500u);
  EXPECT_EQ(decay.due(kStart + seconds(16), 1000), 750u);
  EXPECT_EQ(decay.due(kStart + seconds(24), 100), 100u) << "what is used again is not due";
  decay.gave_back(100);
  EXPECT_EQ(decay.due(kStart + seconds(32), 1000), 0u) << "nothing of it was free all the time";
}

TEST(Decay, WhatWentTooEarlyIsMadeUpFor) {
  Decay decay(seconds(8));
  decay.due(kStart, 1000);
  EXPECT_EQ(decay.due(kStart + seconds(8), 1000), 500u);
  decay.gave_back(600);
  EXPECT_EQ(decay.due(kStart + seconds(16), 400), 150u) << "half of 500, less the 100";
}

TEST(Decay, OnlyWhatWasFreeAllThroughThePeriodIsIdle) {
  Decay decay(seconds(8));
  decay.due(kStart, 1000);
  EXPECT_EQ(decay.due(kStart + std::chrono::milliseconds(500), 200), 0u) << "within a period";
  EXPECT_EQ(decay.due(kStart + seconds(8), 1000), 100u);
}

TEST(Decay, AHalfLifeOfZeroIsNever) {
  Decay decay(seconds(0));
  decay.due(kStart, 1000);
  EXPECT_EQ(decay.due(kStart + seconds(1000000), 1000), 0u);
}

class DecayTest : public testing::AllocatorTest {
 protected:
  void start_decaying() {
    Configuration configuration = without_thread_caches();
    configuration.decay_seconds = 8;
    start(configuration);
  }
};

TEST_F(DecayTest, IdlePagesAreDiscardedAndTheSpanGoesWhenAllOfItIsFree) {
  start_decaying();
  char* kept = device(2 * kMiB);
  char* idle = device(16 * kMiB);
  allocator->free(idle);
  allocator->limits().decay(kStart);
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 18 * kMiB);
  allocator->limits().decay(kStart + seconds(8));
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 10 * kMiB);
  EXPECT_EQ(allocator->statistics().discarded_bytes, 8 * kMiB);
  for (int step = 2; step < 8; ++step) allocator->limits().decay(kStart + seconds(8 * step));
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 2 * kMiB);
  allocator->free(kept);
}

// A host block that moved and was freed waits behind the fences of its last users.
TEST_F(DecayTest, WhatHasMovedDecaysOnceNobodyWorksOnIt) {
  start_decaying();
  char* block = host(16 * kMiB);
  to_device(block, testing::stream(1));
  machine->busy = {testing::stream(1)};
  allocator->free(block);
  for (int step = 0; step < 10; ++step) allocator->limits().decay(kStart + seconds(8 * step));
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 16 * kMiB);
  allocator->inspection().check_invariants();
  machine->finish(testing::stream(1));
  for (int step = 10; step < 20; ++step) allocator->limits().decay(kStart + seconds(8 * step));
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
  allocator->inspection().check_invariants();
}

// The request for a small object also makes the page a page of packed blocks.
TEST_F(DecayTest, WhatWasReleasedOnADeviceIsBroughtBackAlsoForSmallObjects) {
  start_decaying();
  host(4 * kMiB);  // keeps the span
  char* block = host(4 * kMiB);
  to_device(block, testing::stream(1));
  allocator->free(block);
  allocator->release_cached();
  machine->hints.clear();
  ASSERT_EQ(host(512), block);
  EXPECT_EQ(machine->hints,
            (std::vector<Hint>{{HintKind::kPrefetch, {}, Place::host(), block, 2 * kMiB},
                               {HintKind::kAdvise, Advice::kSetPreferredLocation, Place::host(),
                                block, 2 * kMiB}}));
  EXPECT_EQ(allocator->inspection().residency(block, 2 * kMiB)[Place::host()], 2 * kMiB);
}

TEST_F(DecayTest, WhatWasReleasedOnADeviceIsBroughtBackForItsNextUser) {
  start_decaying();
  host(4 * kMiB);  // keeps the span
  char* block = host(4 * kMiB);
  to_device(block, testing::stream(1));
  allocator->free(block);
  allocator->release_cached();
  machine->hints.clear();
  ASSERT_EQ(host(4 * kMiB), block);
  EXPECT_EQ(allocator->statistics().recalls, 0u);
  EXPECT_EQ(machine->hints,
            (std::vector<Hint>{{HintKind::kPrefetch, {}, Place::host(), block, 4 * kMiB},
                               {HintKind::kAdvise, Advice::kSetPreferredLocation, Place::host(),
                                block, 4 * kMiB}}));
  EXPECT_EQ(allocator->inspection().residency(block, 4 * kMiB)[Place::host()], 4 * kMiB);
}

TEST_F(DecayTest, WhatCannotGoYetDoesNotMakeTheRestGoFaster) {
  start_decaying();
  char* block = host(64 * kMiB);
  to_device(block, testing::stream(1));
  machine->busy = {testing::stream(1)};
  allocator->free(block);
  device(2 * kMiB, testing::stream(2));
  allocator->free(device(16 * kMiB, testing::stream(2)));
  allocator->limits().decay(kStart);
  allocator->limits().decay(kStart + seconds(8));
  EXPECT_EQ(allocator->statistics().discarded_bytes, 8 * kMiB);
}

// Spans of managed host memory are released as a whole.
TEST_F(DecayTest, HostSpansDecayOneAfterTheOther) {
  Configuration configuration = without_thread_caches();
  configuration.decay_seconds = 8 * 3600;
  configuration.span_bytes.reset();
  configuration.budget_bytes = 1024 * kMiB;
  start(configuration);
  host(512);
  std::vector<char*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(host(8 * kMiB));
  for (char* block : blocks) allocator->free(block);
  // Three blocks share the small object's span, 15 spans have four blocks each, one block is alone.
  EXPECT_EQ(allocator->statistics().touched_bytes.current, (2 + 512) * kMiB);
  std::vector<std::size_t> touched_mib;
  // Later than the decay calls of the requests, which ran before anything was free.
  const Decay::Time begin = std::chrono::steady_clock::now() + std::chrono::hours(1);
  for (int period = 0; period <= 32; ++period) {
    allocator->limits().decay(begin + std::chrono::hours(period));
    if (period % 8 == 0) {
      touched_mib.push_back(allocator->statistics().touched_bytes.current / kMiB);
    }
  }
  EXPECT_EQ(touched_mib, (std::vector<std::size_t>{514, 282, 154, 90, 58}));
  EXPECT_EQ(allocator->statistics().discarded_bytes, 0u);
}

TEST_F(DecayTest, ALargeSpanGoesAfterAHalfLife) {
  Configuration configuration = without_thread_caches();
  configuration.decay_seconds = 8;
  configuration.span_bytes.reset();
  start(configuration);
  allocator->free(host(200 * kMiB));
  for (int period = 0; period <= 7; ++period) allocator->limits().decay(kStart + seconds(period));
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 200 * kMiB);
  allocator->limits().decay(kStart + seconds(8));
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
}

// Memory that cannot be released does not count as idle. Otherwise other memory would be released
// too early.
TEST_F(DecayTest, APartlyUsedHostSpanKeepsItsFreeBlocks) {
  start_decaying();
  host(2 * kMiB);
  char* idle = host(16 * kMiB);
  allocator->free(idle);
  device(2 * kMiB);
  allocator->free(device(16 * kMiB));
  for (int step = 0; step < 3; ++step) allocator->limits().decay(kStart + seconds(8 * step));
  EXPECT_EQ(allocator->statistics().discarded_bytes, 12 * kMiB);
  EXPECT_EQ(host(16 * kMiB), idle);
}

TEST_F(DecayTest, MemoryThatStepsUseIsLeftAlone) {
  start_decaying();
  for (int step = 0; step < 20; ++step) {
    char* used = device(16 * kMiB);
    allocator->limits().decay(kStart + std::chrono::milliseconds(500 * step));
    allocator->free(used);
    allocator->limits().decay(kStart + std::chrono::milliseconds(500 * step + 250));
  }
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 16 * kMiB);
  EXPECT_EQ(allocator->statistics().discarded_bytes, 0u);
}

TEST_F(DecayTest, WhatThreadsKeepDecaysToo) {
  Configuration configuration = small_configuration();
  configuration.decay_seconds = 1;
  start(configuration);
  std::vector<char*> blocks;
  for (int i = 0; i < 60; ++i) blocks.push_back(host(40 << 10));
  for (char* block : blocks) allocator->free(block);
  ASSERT_NE(allocator->statistics().thread_cached_bytes, 0u);
  for (int step = 0; step < 40; ++step) {
    allocator->limits().decay(kStart + std::chrono::milliseconds(500 * step));
  }
  EXPECT_EQ(allocator->statistics().thread_cached_bytes, 0u);
}

TEST_F(DecayTest, RequestsThatAreMetFromThePoolsLookAtTheClock) {
  Configuration configuration = small_configuration();
  configuration.decay_seconds = 1e-6;
  start(configuration);
  char* large = device(16 * kMiB);
  std::vector<char*> blocks;
  for (int i = 0; i < 500; ++i) blocks.push_back(device(100 << 10));
  allocator->free(large);
  for (char* block : blocks) allocator->free(block);
  const std::uint64_t touched = allocator->statistics().touched_bytes.current;
  for (int i = 0; i < 300; ++i) device(20 << 10);
  EXPECT_LT(allocator->statistics().touched_bytes.current, touched);
}

TEST_F(DecayTest, RequestsThatAreMetFromTheThreadsCacheLookAtTheClock) {
  Configuration configuration = small_configuration();
  configuration.decay_seconds = 1e-6;
  start(configuration);
  char* large = device(16 * kMiB);
  allocator->free(device(1000));
  allocator->free(large);
  const std::uint64_t touched = allocator->statistics().touched_bytes.current;
  ASSERT_GE(touched, 16 * kMiB);
  const std::uint64_t hits_before = allocator->statistics().cache_hits[2];
  constexpr int kRequests = 40000;
  for (int i = 0; i < kRequests; ++i) allocator->free(device(1000));
  ASSERT_EQ(allocator->statistics().cache_hits[2], hits_before + kRequests);
  EXPECT_LT(allocator->statistics().touched_bytes.current, touched);
}

}  // namespace
}  // namespace uvm
