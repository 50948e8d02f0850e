// Handwritten recordings on machines with known costs: virtual times and traffic are exact.
#include "sim/replay/replay_machine.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "sim/engine/units.hpp"

namespace uvmsim::replay {
namespace {

// Room for two chunks beside the context, copies at 2 bytes/ns, kernels at their recorded time.
MachineProfile small_machine(std::size_t chunks = 2) {
  MachineProfile profile;
  profile.capacity_bytes = chunks * kBlockBytes + kBlockBytes / 2;
  profile.costs = Costs{};
  profile.costs.to_device_bytes_per_ns = 2;
  profile.costs.to_host_bytes_per_ns = 2;
  profile.costs.call_ns = 0;
  return profile;
}
constexpr std::uint64_t kCopyNs = kBlockBytes / 2;

class ReplayMachineTest : public ::testing::Test {
 protected:
  ReplayMachineTest() {
    recording.streams.push_back({0});
    for (std::uint64_t block = 0; block < 4; ++block)
      recording.block_addresses.push_back(block * kBlockBytes);
  }

  static PageRange block(std::size_t number) {
    return {number * kPagesPerBlock, (number + 1) * kPagesPerBlock};
  }

  void add_kernel(std::size_t on_block, std::uint64_t duration_ns,
                  int access = UVMSIM_READ | UVMSIM_WRITE) {
    Event event;
    event.kind = EventKind::kKernel;
    event.is_timed = true;
    event.amount = duration_ns;
    event.first_touch = static_cast<std::uint32_t>(recording.touches.size());
    event.touch_count = 1;
    recording.touches.push_back({block(on_block), kBlockBytes, access});
    recording.events.push_back(event);
  }

  void add_prefetch(std::size_t of_block, int location) {
    Event event;
    event.kind = EventKind::kPrefetch;
    event.pages = block(of_block);
    event.location = location;
    recording.events.push_back(event);
  }

  void add_mark(const char* text) {
    recording.marks.push_back({recording.events.size(), text});
    Event event;
    event.kind = EventKind::kMark;
    recording.events.push_back(event);
  }

  Outcome run_without_hints(const MachineProfile& profile) {
    NoHints policy;
    return run(recording, profile, policy);
  }

  Recording recording;
};

TEST_F(ReplayMachineTest, ResidentMemoryCostsNothingButTheKernel) {
  add_kernel(0, 100);
  add_kernel(0, 100);
  EXPECT_EQ(run_without_hints(small_machine()).duration_ns, 200U);
}

TEST_F(ReplayMachineTest, AWorkingSetBeyondTheCapacityMovesAndASmallerOneDoesNot) {
  for (int round = 0; round < 2; ++round)
    for (std::size_t block = 0; block < 3; ++block) add_kernel(block, 100);
  const Outcome fits = run_without_hints(small_machine(3));
  EXPECT_EQ(fits.counters.evicted_chunks, 0U);
  EXPECT_EQ(fits.duration_ns, 600U);
  const Outcome short_of_memory = run_without_hints(small_machine(2));
  EXPECT_EQ(short_of_memory.counters.evicted_chunks, 4U);
  EXPECT_EQ(short_of_memory.counters.migrated_bytes_to_device, 3 * kBlockBytes);
  EXPECT_EQ(short_of_memory.duration_ns, 600 + (4 + 3) * kCopyNs);
}

TEST_F(ReplayMachineTest, AdviceAndDiscardsArePricedByTheBlocksThatHaveHadPages) {
  add_kernel(1, 100);
  Event hint;
  hint.kind = EventKind::kAdvise;
  hint.pages = {0, 4 * kPagesPerBlock};
  hint.amount = 1000;  // blocks of the range, most of them without memory
  hint.advice = Advice::kSetPreferredLocation;
  hint.location = 0;
  recording.events.push_back(hint);
  hint.kind = EventKind::kDiscard;
  recording.events.push_back(hint);
  MachineProfile profile = small_machine(4);
  profile.costs.advice_block_ns = 5000;
  profile.costs.discard_block_ns = 300;
  RecordedHints hints;
  EXPECT_EQ(run(recording, profile, hints).duration_ns, 5000 + 300U) << "beside the kernel";
}

TEST_F(ReplayMachineTest, RecordedHintsAreSentAgainOrLeftOut) {
  add_prefetch(0, 0);
  add_kernel(0, 100);
  RecordedHints recorded;
  EXPECT_EQ(run(recording, small_machine(), recorded).counters.prefetch_calls, 1U);
  EXPECT_EQ(run(recording, small_machine(), recorded).counters.faults_device, 0U);
  EXPECT_EQ(run_without_hints(small_machine()).counters.prefetch_calls, 0U);
  EXPECT_NE(run_without_hints(small_machine()).counters.faults_device, 0U);
}

// Prefetches block 1 during the kernel on block 0. The next kernel waits for that prefetch.
class PrefetchNext final : public HintPolicy {
 public:
  void before(std::size_t event, Hints& hints) override {
    const std::uint32_t side = hints.side_stream(0);
    EXPECT_EQ(hints.side_stream(0), side);
    if (event == 2) {
      hints.prefetch(side, {kPagesPerBlock, 2 * kPagesPerBlock}, 0);
    } else if (event == 3) {
      EXPECT_EQ(hints.resident_pages({kPagesPerBlock, 2 * kPagesPerBlock}, 0), kPagesPerBlock);
      hints.wait(0, side);
    }
  }
};

TEST_F(ReplayMachineTest, APolicyHidesACopyBehindAKernel) {
  add_prefetch(1, kHost);
  add_kernel(0, 100);
  add_kernel(0, 3 * kCopyNs);
  add_kernel(1, 100);
  // Keeps the recorded prefetch, so that the copy starts from host memory.
  class Both final : public HintPolicy {
   public:
    explicit Both(HintPolicy* inner) : inner_(inner) {}
    bool keeps_recorded_hints() const override { return true; }
    void before(std::size_t event, Hints& hints) override {
      if (inner_ != nullptr) inner_->before(event, hints);
    }

   private:
    HintPolicy* inner_;
  };
  Both left_alone(nullptr);
  EXPECT_EQ(run(recording, small_machine(), left_alone).duration_ns, 200 + 4 * kCopyNs);
  PrefetchNext next;
  Both hidden(&next);
  EXPECT_EQ(run(recording, small_machine(), hidden).duration_ns, 200 + 3 * kCopyNs);
}

// Two prefetches on two streams; the kernel waits for the first prefetch only.
class TwoSideStreams final : public HintPolicy {
 public:
  explicit TwoSideStreams(bool host_waits) : host_waits_(host_waits) {}
  bool keeps_recorded_hints() const override { return true; }
  void before(std::size_t event, Hints& hints) override {
    if (event != 3) return;
    const std::uint32_t first = hints.side_stream(0, 0);
    const std::uint32_t second = hints.side_stream(0, 1);
    EXPECT_NE(first, second);
    hints.prefetch(first, block_pages(1), 0);
    const std::uint32_t recorded = hints.record(first);
    hints.prefetch(second, block_pages(2), 0);
    const std::uint64_t before_ns = hints.now_ns();
    host_waits_ ? hints.host_wait_for(recorded) : hints.wait_for(0, recorded);
    EXPECT_EQ(hints.now_ns() - before_ns, host_waits_ ? kCopyNs : 0U);
  }

 private:
  static PageRange block_pages(std::size_t number) {
    return {number * kPagesPerBlock, (number + 1) * kPagesPerBlock};
  }
  const bool host_waits_;
};

TEST_F(ReplayMachineTest, AKernelWaitsForTheRecordedWorkAndNotForWhatIsBehindIt) {
  add_prefetch(1, kHost);
  add_prefetch(2, kHost);
  add_mark("step");
  add_kernel(1, 3 * kCopyNs);
  for (const bool host_waits : {false, true}) {
    TwoSideStreams policy(host_waits);
    EXPECT_EQ(run(recording, small_machine(3), policy).steps[1].duration_ns, 4 * kCopyNs);
  }
}

TEST_F(ReplayMachineTest, StepsBeginAtMarksAndHaveTheirOwnFigures) {
  add_kernel(0, 10);
  add_mark("step 1");
  add_kernel(0, 20);
  add_kernel(0, 30);
  add_mark("step 2");
  add_kernel(1, 40);
  const Outcome outcome = run_without_hints(small_machine());
  ASSERT_EQ(outcome.steps.size(), 3U);
  EXPECT_EQ(outcome.steps[1].mark, "step 1");
  EXPECT_EQ(outcome.steps[1].duration_ns, 50U);
  EXPECT_EQ(outcome.steps[1].kernel_ns, 50U);
  EXPECT_EQ(outcome.steps[1].counters.fault_pages_device, 0U);
  EXPECT_EQ(outcome.steps[2].mark, "step 2");
  EXPECT_EQ(outcome.steps[2].counters.kernels, 1U);
  EXPECT_EQ(outcome.steps[2].counters.fault_pages_device, kPagesPerBlock);
}

TEST_F(ReplayMachineTest, OperationsCostWhatTheProfileSays) {
  add_kernel(0, 0);
  Event event;
  event.kind = EventKind::kKernel;
  event.amount = 1000000;
  event.type = OperationType::kFloat16;
  recording.events.push_back(event);
  MachineProfile profile = small_machine();
  profile.costs.launch_ns = 5;
  EXPECT_EQ(run_without_hints(profile).duration_ns, 5U);
  profile.costs.operations_per_ns[static_cast<std::size_t>(OperationType::kFloat16)] = 1000;
  EXPECT_EQ(run_without_hints(profile).duration_ns, 1005U);
}

TEST_F(ReplayMachineTest, AnIntegratedMachineMovesNothing) {
  for (std::size_t block = 0; block < 3; ++block) add_kernel(block, 100);
  MachineProfile profile = small_machine();
  profile.memory = Profile::kIntegrated;
  profile.rules.memory.shares_host = true;
  const Outcome outcome = run_without_hints(profile);
  EXPECT_EQ(outcome.counters.migrated_bytes_to_device, 0U);
  EXPECT_EQ(outcome.counters.evicted_chunks, 0U);
  EXPECT_EQ(outcome.failure, "");
}

TEST_F(ReplayMachineTest, AHostWithoutRoomEndsTheRunAndTheEventIsNamed) {
  for (std::size_t block = 0; block < 3; ++block) add_kernel(block, 100);
  MachineProfile profile = small_machine();
  profile.rules.memory.host_bytes = kPageBytes;
  EXPECT_EQ(run_without_hints(profile).failure,
            "event 2 finds no memory on the device or the host");
}

TEST_F(ReplayMachineTest, FaultsAndTrafficBelongToTheAllocationThatIsTouched) {
  recording.allocation_count = 2;
  add_kernel(0, 1);
  add_kernel(1, 1);
  add_kernel(2, 1);
  recording.touches[2].block = 1;
  const Outcome outcome = run_without_hints(small_machine());
  EXPECT_EQ(outcome.blocks[0].touches, 2U);
  EXPECT_EQ(outcome.blocks[0].evicted_bytes, 0U);
  EXPECT_EQ(outcome.blocks[1].touches, 1U);
  EXPECT_EQ(outcome.blocks[1].faults, kPagesPerBlock);
  EXPECT_EQ(outcome.blocks[1].evicted_bytes, kBlockBytes);
}

TEST_F(ReplayMachineTest, TheSameRecordingTakesTheSameTime) {
  for (int round = 0; round < 20; ++round) add_kernel(static_cast<std::size_t>(round * 7 % 4), 100);
  const Outcome first = run_without_hints(small_machine());
  for (int repeat = 0; repeat < 20; ++repeat)
    EXPECT_EQ(run_without_hints(small_machine()).duration_ns, first.duration_ns);
}

TEST_F(ReplayMachineTest, NumbersThatLeadNowhereAreRefused) {
  add_kernel(0, 1);
  const auto refuses = [&] {
    EXPECT_THROW(run_without_hints(small_machine()), std::invalid_argument);
  };
  recording.touches[0].pages = block(4);
  refuses();
  recording.touches[0].pages = block(0);
  recording.events[0].stream = 1;
  refuses();
  recording.events[0].stream = 0;
  recording.events[0].touch_count = 2;
  refuses();
  recording.events[0].touch_count = 1;
  recording.events[0].device = 1;
  refuses();
}

}  // namespace
}  // namespace uvmsim::replay
