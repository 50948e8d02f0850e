// Measures the CPU time of one use event of the live planner: the log, the learner and the plan,
// without the driver's calls. Repeats a step of 256 kernels, each with four blocks of 2 MiB, on a
// device with room for three quarters of the blocks.
#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "hints/oversubscription/live_plan.hpp"

namespace {

using namespace uvm::live;
using uvm::kPageBytes;

class AnyMemory final : public PageOwner {
 public:
  bool is_ours(uvm::PageNumber) const override { return true; }
  Discarded take_free(uvm::PageNumber, uvm::DeviceStream*) override { return Discarded::kRefused; }
};

// With `short`, a quarter of the blocks has no room; otherwise all fit.
void use_event(benchmark::State& state) {
  constexpr std::size_t kBlocks = 128;
  constexpr std::size_t kKernels = 256;
  constexpr std::size_t kUses = 4;
  const bool is_short = state.range(0) != 0;
  UseLog log([](std::uintptr_t) { return BlockExtent{}; });
  StepLearner learner(log);
  AnyMemory owner;
  MoveList moves(owner, /*discards=*/true);
  std::vector<PlannedMove> taken;
  const PlannedLivePolicy policy;
  LivePlan plan(log, learner, policy, moves, is_short ? kBlocks * 3 / 4 : kBlocks);
  for (std::size_t block = 1; block <= kBlocks; ++block)
    log.allocated(block * kPageBytes, kPageBytes);
  std::size_t kernel = 0;
  const auto note = [&] {
    std::array<UseRange, kUses> uses;
    for (std::size_t i = 0; i < kUses; ++i)
      uses[i] = {(1 + (kernel / 2 + i) % kBlocks) * kPageBytes, kPageBytes, kReads};
    kernel = (kernel + 1) % kKernels;
    log.add_kernel(uses);
    learner.kernel_added();
    plan.before_kernel();
    moves.take(&taken);
  };
  for (std::size_t i = 0; i < 4 * kKernels; ++i) note();
  for (auto _ : state) note();
  if (!learner.predicts()) state.SkipWithError("the step was not learned");
  state.counters["per_use"] = benchmark::Counter(
      kUses, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(use_event)->ArgName("short")->Arg(0)->Arg(1);

// Measures all that the live planner costs a program while memory is not short.
void not_watching(benchmark::State& state) {
  std::atomic<bool> watches{false};
  for (auto _ : state) benchmark::DoNotOptimize(watches.load(std::memory_order_relaxed));
}
BENCHMARK(not_watching);

}  // namespace

BENCHMARK_MAIN();
