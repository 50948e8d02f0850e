// Measures the CPU time of one use event of the live planner: the log, the learner and the plan,
// without the driver's calls. Repeats a step of 256 kernels, each with four blocks of 2 MiB, on a
// device with room for three quarters of the blocks. Measures also how long frees take while
// another thread's kernels are planned, each of which needs many pages.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "allocator/interface.hpp"
#include "hints/oversubscription/live_plan.hpp"

#include "tests/support/fake_runtime.hpp"

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

// Kernels of 192 blocks of 2 MiB each on a device with room for 480 of 768. Another thread frees
// small blocks meanwhile.
void free_wait(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kBlocks = 768;
  constexpr std::size_t kUses = 192;
  constexpr std::size_t kFrees = 20'000;
  auto machine = std::make_shared<uvm::testing::FakeMachine>();
  machine->total_bytes = std::size_t{1} << 30;
  uvm::Configuration configuration;
  configuration.thrashing = uvm::Thrashing::kIgnore;
  uvm::CachingManagedAllocator allocator(std::make_unique<uvm::testing::FakeRuntime>(machine),
                                         configuration);
  const auto allocate = [&](std::size_t size_bytes) {
    return allocator.allocate(uvm::Facade::kDevice, 0, size_bytes, nullptr);
  };
  std::vector<UseRange> blocks;
  for (std::size_t i = 0; i < kBlocks; ++i)
    blocks.push_back({uvm::address_of(allocate(kPageBytes)), kPageBytes, kReads | kWrites});
  const auto longest = [](std::vector<Clock::duration>& all) {
    std::ranges::sort(all);
    return [&all](double share) {
      const auto last = static_cast<double>(all.size() - 1);
      return std::chrono::duration<double>(all[static_cast<std::size_t>(share * last)]).count();
    };
  };
  std::vector<Clock::duration> frees;
  std::vector<Clock::duration> decisions;
  for (auto _ : state) {
    std::vector<void*> small;
    for (std::size_t i = 0; i < kFrees; ++i) small.push_back(allocate(4096));
    std::atomic<bool> ends{false};
    std::thread launches([&] {
      for (std::size_t i = 0; !ends.load(); i = (i + kUses) % kBlocks) {
        const auto begin = Clock::now();
        allocator.kernel_uses().note(0, nullptr, std::span(blocks).subspan(i, kUses),
                                     uvm::live::Launch::kKernel);
        decisions.push_back(Clock::now() - begin);
      }
    });
    for (void* each : small) {
      const auto begin = Clock::now();
      allocator.free(each);
      frees.push_back(Clock::now() - begin);
      std::this_thread::yield();
    }
    ends = true;
    launches.join();
  }
  const auto free_time = longest(frees);
  const auto decision_time = longest(decisions);
  state.counters["longest_free_s"] = free_time(1);
  state.counters["free_999_of_1000_s"] = free_time(0.999);
  state.counters["longest_decision_s"] = decision_time(1);
  state.counters["median_decision_s"] = decision_time(0.5);
  if (allocator.inspection().live_figures().brought_pages == 0)
    state.SkipWithError("no page has moved");
}
BENCHMARK(free_wait)->Iterations(5);

}  // namespace

BENCHMARK_MAIN();
