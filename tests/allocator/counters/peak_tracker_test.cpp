// Peaks of sums over threads are exact, whichever thread allocates and frees.
#include "allocator/counters/peak_tracker.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "storage/pages.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

// Each thread counts on its own, and aggregates all counts when its headroom is used up.
struct Threads {
  explicit Threads(std::size_t count) : thread_counts(count) {}

  void allocate(std::size_t thread, std::size_t bytes, std::size_t requested_bytes) {
    if (thread_counts[thread].allocated(size_class_of(bytes), bytes, requested_bytes, false))
      return;
    aggregate(&thread_counts[thread]);
  }
  void free(std::size_t thread, std::size_t bytes, std::size_t requested_bytes) {
    thread_counts[thread].freed(size_class_of(bytes), bytes, requested_bytes);
  }
  void aggregate(const ThreadCounters* asking = nullptr) {
    ++times;
    std::vector<ThreadCounters*> all;
    HeadroomShares shares;
    allocated_before.resize(thread_counts.size());
    for (std::size_t thread = 0; thread < thread_counts.size(); ++thread) {
      ThreadCounters& counts = thread_counts[thread];
      const std::int64_t blocks = counts.total(ThreadCounters::kAll).blocks;
      shares.add(std::exchange(allocated_before[thread], blocks) != blocks, &counts == asking);
      all.push_back(&counts);
    }
    peaks.aggregate(0, all, ended, shares);
  }
  ThreadCounters sum() const {
    ThreadCounters sum = ended;
    for (const ThreadCounters& counts : thread_counts) sum.absorb(counts);
    return sum;
  }

  std::vector<ThreadCounters> thread_counts;
  std::vector<std::int64_t> allocated_before;
  ThreadCounters ended;
  std::array<PeakTracker::Peaks, 1> counters{};
  PeakTracker peaks{counters};
  int times = 0;
};

TEST(PeakTracker, APeakOfTwoThreadsIsTheirSumAtOneMoment) {
  Threads threads(2);
  threads.allocate(0, 4096, 4000);
  threads.allocate(1, 8192, 8000);
  threads.free(0, 4096, 4000);
  threads.allocate(1, 4096, 4096);
  const Amounts& peak = threads.peaks.peak(0, ThreadCounters::kAll);
  EXPECT_EQ(peak.blocks, 2);
  EXPECT_EQ(peak.bytes, 4096 + 8192);
  EXPECT_EQ(peak.requested_bytes, 4096 + 8000) << "at another moment than that of the bytes";
}

TEST(PeakTracker, BelowThePeakASingleThreadNeverAddsUp) {
  Threads threads(1);
  threads.allocate(0, 64 * kMiB, 64 * kMiB);
  threads.free(0, 64 * kMiB, 64 * kMiB);
  threads.allocate(0, 64 * kMiB, 64 * kMiB);
  threads.free(0, 64 * kMiB, 64 * kMiB);
  threads.aggregate();
  int before = threads.times;
  for (int round = 0; round < 100; ++round) {
    threads.allocate(0, 64 * kMiB, 64 * kMiB);
    threads.free(0, 64 * kMiB, 64 * kMiB);
  }
  EXPECT_EQ(threads.times, before);
}

TEST(PeakTracker, BlocksThatAnotherThreadFreesLeaveARoomThatIsNotUsedTwice) {
  Threads threads(2);
  threads.allocate(0, 4096, 4096);
  threads.free(1, 4096, 4096);
  EXPECT_EQ(threads.sum().live(ThreadCounters::kAll).bytes, 0);
  threads.aggregate();
  threads.allocate(0, 4096, 4096);
  threads.allocate(1, 4096, 4096);
  EXPECT_EQ(threads.peaks.peak(0, ThreadCounters::kAll).bytes, 8192);
}

// As in a training step, one thread allocates what another thread frees. Then the first thread
// stands still while the other thread allocates.
TEST(PeakTracker, AThreadThatStandsStillLeavesAllRoomToTheOther) {
  Threads threads(2);
  constexpr int kBlocks = 1000;
  for (int i = 0; i < kBlocks; ++i) threads.allocate(0, 4096, 4096);
  for (int i = 0; i < kBlocks; ++i) threads.free(1, 4096, 4096);
  threads.allocate(1, 4096, 4096);
  threads.free(1, 4096, 4096);
  for (int phase = 0; phase < 4; ++phase) {
    threads.times = 0;
    const std::size_t thread = phase % 2 == 0 ? 0 : 1;
    for (int i = 0; i < kBlocks; ++i) threads.allocate(thread, 4096, 4096);
    EXPECT_LE(threads.times, 2) << "phase " << phase;
    for (int i = 0; i < kBlocks; ++i) threads.free(1 - thread, 4096, 4096);
  }
}

TEST(PeakTracker, AResetStartsFromWhatIsLive) {
  Threads threads(2);
  threads.allocate(0, 8192, 8192);
  threads.allocate(1, 4096, 4096);
  threads.free(0, 8192, 8192);
  threads.peaks.reset_peaks(0);
  threads.peaks.reset_totals(0, threads.sum());
  threads.aggregate();
  EXPECT_EQ(threads.peaks.peak(0, 0).bytes, 4096);
  EXPECT_EQ(threads.peaks.increased(0, 0, threads.sum()).bytes, 0);
  threads.allocate(0, 512, 100);
  threads.free(1, 4096, 4096);
  EXPECT_EQ(threads.peaks.peak(0, 0).bytes, 4608);
  EXPECT_EQ(threads.peaks.increased(0, 0, threads.sum()).requested_bytes, 100);
  EXPECT_EQ(threads.peaks.decreased(0, 0, threads.sum()).bytes, 4096);
}

class PeakBookProperty : public ::testing::TestWithParam<unsigned> {};

TEST_P(PeakBookProperty, PeaksAreExactWhicheverThreadsCount) {
  std::mt19937 random(GetParam());
  Threads threads(1 + GetParam() % 5);
  struct Block {
    std::size_t bytes;
    std::size_t requested_bytes;
  };
  std::vector<Block> live;
  std::array<Amounts, kSizeClasses + 1> now{};
  std::array<Amounts, kSizeClasses + 1> peak{};
  auto count = [&](const Block& block, std::int64_t sign) {
    const Amounts one{sign, sign * static_cast<std::int64_t>(block.bytes),
                      sign * static_cast<std::int64_t>(block.requested_bytes)};
    for (std::size_t of :
         {static_cast<std::size_t>(size_class_of(block.bytes)), ThreadCounters::kAll}) {
      now[of] += one;
      peak[of] = {std::max(peak[of].blocks, now[of].blocks),
                  std::max(peak[of].bytes, now[of].bytes),
                  std::max(peak[of].requested_bytes, now[of].requested_bytes)};
    }
  };
  for (int step = 0; step < 20000; ++step) {
    std::size_t thread = random() % threads.thread_counts.size();
    if (live.empty() || random() % 100 < (step / 2000 % 2 == 0 ? 60u : 40u)) {
      std::size_t requested = 1 + random() % (random() % 4 == 0 ? 4 * kMiB : 8192);
      Block block{round_up(requested, 512), requested};
      live.push_back(block);
      count(block, 1);
      threads.allocate(thread, block.bytes, block.requested_bytes);
    } else {
      std::swap(live[random() % live.size()], live.back());
      count(live.back(), -1);
      threads.free(thread, live.back().bytes, live.back().requested_bytes);
      live.pop_back();
    }
    // A thread ends, and another begins in its place.
    if (random() % 500 == 0) {
      threads.ended.absorb(threads.thread_counts[thread]);
      threads.thread_counts[thread] = {};
      threads.aggregate();
    }
    for (std::size_t of = 0; of <= ThreadCounters::kAll; ++of) {
      const Amounts& noted = threads.peaks.peak(0, of);
      ASSERT_EQ(noted.blocks, peak[of].blocks) << "step " << step;
      ASSERT_EQ(noted.bytes, peak[of].bytes) << "step " << step;
      ASSERT_EQ(noted.requested_bytes, peak[of].requested_bytes) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PeakBookProperty, ::testing::Range(0u, 10u));

}  // namespace
}  // namespace uvm
