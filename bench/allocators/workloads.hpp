// The measurements: a template on the adapter, so that all allocators run the same code, with only
// a loop between the clock and the allocator's call. Each workload makes its own adapter, with an
// empty cache. It returns plain figures, which Python compares (measure.py), and throws if an
// allocator cannot run it.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "storage/pages.hpp"

#include "checked_pass.hpp"
#include "driver_calls.hpp"
#include "private_memory.hpp"
#include "random_source.hpp"
#include "request.hpp"
#include "sequences.hpp"
#include "stopwatch.hpp"
#include "streams.hpp"

namespace uvm::bench {

using Json = nlohmann::json;

template <class Adapter>
class Workloads {
 public:
  // Throws std::invalid_argument for an unknown workload, and the allocator's exceptions.
  static Json run(const Request& request) {
    const std::string& name = request.workload();
    if (name == "about") return {{"name", Adapter::kName}, {"version", Adapter::version()}};
    if (name == "pair") return pair(request);
    if (name == "order") return order(request);
    if (name == "threads") return threads(request);
    if (name == "live") return live(request);
    if (name == "churn") return churn_blocks(request);
    if (name == "grid") return grid(request);
    if (name == "replay") return run_sequence(request, replayed(request), kWarmSteps);
    if (name == "check") return check(request, replayed(request));
    if (name == "beginnings") return beginnings(request, replayed(request));
    if (name == "least_budgets") return least_budgets(request, replayed(request));
    if (name == "count") return count(request);
    if (name == "moves") return moves(request);
    if (name == "metadata") return metadata(request);
    if (name == "calls") return calls(request);
    throw std::invalid_argument("no workload is called '" + name + "'");
  }

 private:
  static double median(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    const std::size_t middle = samples.size() / 2;
    return samples.size() % 2 != 0 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  }

  // Returns the median nanoseconds of one `round`, over samples of at least `milliseconds` each.
  template <class Round>
  static double time_rounds(const Request& request, Round round) {
    const double sample_ns = static_cast<double>(request.number("milliseconds", 20)) * 1e6;
    for (int warm = 0; warm < 10; ++warm) round();
    std::size_t rounds = 1;
    double taken_ns = 0;
    for (;; rounds *= 2) {
      const Stopwatch watch;
      for (std::size_t i = 0; i < rounds; ++i) round();
      taken_ns = watch.running_ns();
      if (taken_ns > sample_ns / 4) break;
    }
    rounds = std::max<std::size_t>(
        1, static_cast<std::size_t>(static_cast<double>(rounds) * sample_ns / taken_ns));
    std::vector<double> samples(request.number("samples", 5));
    for (double& sample : samples) {
      const Stopwatch watch;
      for (std::size_t i = 0; i < rounds; ++i) round();
      sample = watch.running_ns() / static_cast<double>(rounds);
    }
    return median(samples);
  }

  static void one_pair(Adapter& allocator, std::size_t size_bytes, cudaStream_t stream) {
    allocator.free(allocator.allocate(size_bytes, stream), size_bytes, stream);
  }

  // Parameters: size, milliseconds, samples. Measures nanoseconds of a pair from the cache.
  static Json pair(const Request& request) {
    Adapter allocator(request);
    const std::size_t size_bytes = request.number("size");
    return {{"ns", time_rounds(request, [&] { one_pair(allocator, size_bytes, nullptr); })}};
  }

  // Parameters: free=lifo|fifo|random, blocks. Allocates all blocks, then frees them in that order.
  // Measures nanoseconds per pair.
  static Json order(const Request& request) {
    Adapter allocator(request);
    const std::size_t blocks = request.number("blocks", 64);
    const std::vector<std::uint64_t> sizes = spread_sizes(blocks, request.number("seed", 1));
    const std::vector<std::size_t> frees = free_order(request, blocks);
    std::vector<void*> held(blocks);
    const double round_ns = time_rounds(request, [&] {
      for (std::size_t i = 0; i < blocks; ++i) held[i] = allocator.allocate(sizes[i], nullptr);
      for (std::size_t i : frees) allocator.free(held[i], sizes[i], nullptr);
    });
    return {{"ns", round_ns / static_cast<double>(blocks)}};
  }

  static std::vector<std::size_t> free_order(const Request& request, std::size_t blocks) {
    std::vector<std::size_t> result(blocks);
    for (std::size_t i = 0; i < blocks; ++i) result[i] = i;
    const std::string kind = request.text("free", "lifo");
    if (kind == "lifo") {
      std::reverse(result.begin(), result.end());
    } else if (kind == "random") {
      RandomSource random(request.number("seed", 1) + 1);
      for (std::size_t i = blocks - 1; i > 0; --i) {
        std::swap(result[i], result[random.below(i + 1)]);
      }
    } else if (kind != "fifo") {
      throw std::invalid_argument("free is '" + kind + "'; accepted: lifo, fifo, random");
    }
    return result;
  }

  struct Throughput {
    double pairs_per_second = 0;
    double delayed = 0;  // upper bound of the part of the time in which a thread had no processor
  };

  // Parameters: size, samples. Measures the ratio of two threads' throughput, with a stream each,
  // to that of one thread. Threads disturb each other only while both run. So the workload measures
  // many windows, short enough to fit between other programs' time slices, and counts those in
  // which every thread had a processor most of the time. "delayed_percent" is the time that threads
  // waited for a processor.
  static Json threads(const Request& request) {
    constexpr std::size_t kCandidates = 64;
    Adapter allocator(request);
    const std::size_t samples = request.number("samples", 5);
    std::vector<Throughput> one, two;
    for (std::size_t i = 0; i < samples * kCandidates; ++i) {
      one.push_back(throughput(allocator, request, 1));
      two.push_back(throughput(allocator, request, 2));
    }
    const Throughput single = median_of_least_delayed(one, samples);
    const Throughput both = median_of_least_delayed(two, samples);
    return {{"ratio", both.pairs_per_second / single.pairs_per_second},
            {"one_thread_ns", 1e9 / single.pairs_per_second},
            {"delayed_percent", 100 * std::max(single.delayed, both.delayed)}};
  }

  static Throughput median_of_least_delayed(std::vector<Throughput> windows, std::size_t count) {
    std::sort(windows.begin(), windows.end(), [](const Throughput& left, const Throughput& right) {
      return left.delayed < right.delayed;
    });
    windows.resize(count);
    std::vector<double> rates;
    for (const Throughput& window : windows) rates.push_back(window.pairs_per_second);
    return {median(rates), windows.back().delayed};
  }

  struct ThreadWindow {
    std::chrono::steady_clock::time_point begin;
    Stopwatch::Lap lap;
    std::uint64_t pairs = 0;
  };

  static Throughput throughput(Adapter& allocator, const Request& request, std::size_t threads) {
    constexpr std::chrono::milliseconds kWindow{1};
    const std::size_t size_bytes = request.number("size");
    const std::vector<cudaStream_t> streams = Streams::first(threads + 1);
    std::atomic<bool> over{false};
    std::barrier start(static_cast<std::ptrdiff_t>(threads) + 1);
    std::vector<ThreadWindow> windows(threads);
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] {
        one_pair(allocator, size_bytes, streams[i + 1]);
        start.arrive_and_wait();
        windows[i] = pairs_until(over, allocator, size_bytes, streams[i + 1]);
      });
    }
    start.arrive_and_wait();
    std::this_thread::sleep_for(kWindow);
    over = true;
    for (std::thread& worker : workers) worker.join();
    return together(windows);
  }

  static ThreadWindow pairs_until(const std::atomic<bool>& over, Adapter& allocator,
                                  std::size_t size_bytes, cudaStream_t stream) {
    constexpr int kBatch = 16;
    ThreadWindow window;
    window.begin = std::chrono::steady_clock::now();
    const Stopwatch watch;
    while (!over.load(std::memory_order_relaxed)) {
      for (int pair = 0; pair < kBatch; ++pair) one_pair(allocator, size_bytes, stream);
      window.pairs += kBatch;
    }
    window.lap = watch.lap();
    return window;
  }

  static Throughput together(const std::vector<ThreadWindow>& windows) {
    const auto first = std::min_element(windows.begin(), windows.end(),
                                        [](const ThreadWindow& left, const ThreadWindow& right) {
                                          return left.begin < right.begin;
                                        });
    Throughput all;
    for (const ThreadWindow& window : windows) {
      if (window.pairs == 0) return {0, 1};
      const std::chrono::duration<double, std::nano> late = window.begin - first->begin;
      all.pairs_per_second += static_cast<double>(window.pairs) * 1e9 / window.lap.wall_ns;
      all.delayed = std::max(
          all.delayed, (late.count() + window.lap.delay_ns) / (late.count() + window.lap.wall_ns));
    }
    return all;
  }

  // Parameters: size, live. Measures nanoseconds per pair beside `live` other live blocks of that
  // size.
  static Json live(const Request& request) {
    Adapter allocator(request);
    const std::size_t size_bytes = request.number("size");
    std::vector<void*> held(request.number("live"));
    for (void*& block : held) block = allocator.allocate(size_bytes, nullptr);
    const double ns = time_rounds(request, [&] { one_pair(allocator, size_bytes, nullptr); });
    for (void* block : held) allocator.free(block, size_bytes, nullptr);
    return {{"ns", ns}};
  }

  // Parameters: live, replacements, most. Measures nanoseconds per operation of a random churn.
  static Json churn_blocks(const Request& request) {
    ChurnShape shape;
    shape.live = static_cast<std::uint32_t>(request.number("live"));
    shape.least_bytes = request.number("least", shape.least_bytes);
    shape.most_bytes = request.number("most", shape.most_bytes);
    shape.warm_replacements = request.number("warm", 2 * std::size_t{shape.live});
    shape.replacements = request.number("replacements", shape.replacements);
    shape.seed = request.number("seed", 1);
    return run_sequence(request, bench::churn(shape), 1);
  }

  // Parameters: allocations, most. Measures nanoseconds per operation of a random mix.
  static Json grid(const Request& request) {
    constexpr std::uint64_t kLiveLimitBytes = std::uint64_t{64} << 30;
    return run_sequence(
        request,
        random_grid(request.number("allocations"), request.number("most"), kLiveLimitBytes,
                    1 + request.number("samples", 5), request.number("seed", 1)),
        1);
  }

  static constexpr std::size_t kWarmSteps = 2;  // of a replay

  // Parameters: trace=FILE, more_steps. Returns a traced program's steps, repeated for at least
  // `more_steps` more. "replay" (runs, budget_percent, most_percent) measures nanoseconds per
  // operation, "check" (budget_percent, most_percent) checks the allocator's blocks.
  static OperationSequence replayed(const Request& request) {
    OperationSequence sequence = traced_steps(request.text("trace", ""));
    const std::size_t more_steps = request.number("more_steps", 0);
    if (const std::size_t steps = sequence.step_begins.size();
        more_steps != 0 && steps > kWarmSteps) {
      const std::size_t repeated = steps - kWarmSteps;
      repeat_steps(sequence, kWarmSteps, (more_steps + repeated - 1) / repeated);
    }
    return sequence;
  }

  // Parameter: beginnings. Measures the ratio of memory taken to live bytes, with this number of
  // random beginnings.
  static Json beginnings(const Request& request, const OperationSequence& sequence) {
    return with_beginnings(request, sequence, [&](const OperationSequence& other) {
      return run_once(request, other, kWarmSteps).reserved_bytes;
    });
  }

  // Parameter: beginnings. Measures the ratio to live bytes of the least budget with which no
  // request fails, with this number of random beginnings.
  static Json least_budgets(const Request& request, const OperationSequence& sequence) {
    return with_beginnings(request, sequence, [&](const OperationSequence& other) {
      return least_budget(request, other);
    });
  }

  // Divides `bytes_of` by live bytes for each beginning. Returns the mean and the maximum.
  template <class BytesOf>
  static Json with_beginnings(const Request& request, const OperationSequence& sequence,
                              const BytesOf& bytes_of) {
    std::vector<double> ratios;
    for (std::uint64_t seed = 1; seed <= request.number("beginnings", 1); ++seed) {
      const OperationSequence other = with_random_beginning(sequence, seed);
      ratios.push_back(static_cast<double>(bytes_of(other)) /
                       static_cast<double>(other.peak_live_bytes()));
    }
    const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
    return {{"mean", sum / static_cast<double>(ratios.size())},
            {"most", *std::max_element(ratios.begin(), ratios.end())}};
  }

  // Returns a budget with which no request fails, accurate to a page, or to a 500th of the peak of
  // live bytes if that is more. No larger budget that was tried failed; a smaller one may suffice
  // by chance.
  static std::uint64_t least_budget(const Request& request, const OperationSequence& sequence) {
    const std::uint64_t peak_pages = round_up(sequence.peak_live_bytes(), kPageBytes) / kPageBytes;
    const std::uint64_t step = std::max<std::uint64_t>(1, peak_pages / 500);
    const std::vector<cudaStream_t> streams = Streams::first(sequence.streams);
    const auto runs_through = [&](std::uint64_t pages) {
      Adapter allocator(request.with("budget", pages * kPageBytes));
      return PassChecker(allocator, sequence, streams).run().failed_requests == 0;
    };
    std::uint64_t enough = peak_pages;
    do {
      enough += std::max(step, peak_pages / 20);
      if (enough > 4 * peak_pages) throw std::runtime_error("four times the live bytes do not do");
    } while (!runs_through(enough));
    while (enough >= peak_pages + step && runs_through(enough - step)) enough -= step;
    return enough * kPageBytes;
  }

  // Returns the request with `percent` of the peak of live bytes as its budget; 0: no budget.
  static Request sized(const Request& request, const OperationSequence& sequence,
                       std::uint64_t percent) {
    if (percent == 0) return request;
    return request.with("budget", sequence.peak_live_bytes() / 100 * percent);
  }

  // Returns the failed requests and overlapping blocks of one pass, with the budget of the timed
  // passes if they have one.
  static Json check(const Request& request, const OperationSequence& sequence) {
    std::uint64_t percent = request.number("budget_percent", 0);
    const std::uint64_t most_percent = request.number("most_percent", percent);
    const std::vector<cudaStream_t> streams = Streams::first(sequence.streams);
    for (;; ++percent) {
      Adapter allocator(sized(request, sequence, percent));
      const CheckedPass pass = PassChecker(allocator, sequence, streams).run();
      if (pass.failed_requests != 0 && percent < most_percent) continue;
      return {{"failed_requests", pass.failed_requests},
              {"overlapping_blocks", pass.overlapping_blocks}};
    }
  }

  struct SequenceRun {
    std::vector<double> step_ns;  // per operation, for each step after the warm-up
    DriverCalls calls;            // of all steps
    DriverCalls steady_calls;     // of the steps after the warm-up
    std::size_t reserved_bytes = 0;
  };

  // Runs a sequence `runs` times, each with a fresh allocator. Measures the time of the steps after
  // the first `warm_steps`; returns memory and driver calls of the last run. The allocator's budget
  // is "budget_percent" of the peak of live bytes, or the first larger percentage, up to
  // "most_percent", with which the whole sequence succeeds.
  static Json run_sequence(const Request& request, const OperationSequence& sequence,
                           std::size_t warm_steps) {
    if (sequence.step_begins.size() <= warm_steps) {
      throw std::invalid_argument("a sequence of " + std::to_string(sequence.step_begins.size()) +
                                  " steps has none to time");
    }
    const std::uint64_t live_bytes = sequence.peak_live_bytes();
    std::uint64_t percent = request.number("budget_percent", 0);
    const std::uint64_t most_percent = request.number("most_percent", percent);
    std::vector<double> samples;
    SequenceRun run;
    for (std::uint64_t number = 0; number < request.number("runs", 1);) {
      try {
        run = run_once(sized(request, sequence, percent), sequence, warm_steps);
      } catch (const std::bad_alloc&) {
        if (percent >= most_percent) throw;
        ++percent;
        continue;
      }
      samples.insert(samples.end(), run.step_ns.begin(), run.step_ns.end());
      ++number;
    }
    const auto steps = static_cast<double>(run.step_ns.size());
    const auto per_step = [&](std::uint64_t calls) { return static_cast<double>(calls) / steps; };
    const DriverCalls& steady = run.steady_calls;
    return {{"ns", median(samples)},
            {"peak_reserved_bytes", run.reserved_bytes},
            {"peak_live_bytes", live_bytes},
            {"reserved_over_live",
             static_cast<double>(run.reserved_bytes) / static_cast<double>(live_bytes)},
            {"budget_percent", percent},
            {"discard_calls", run.calls.discards},
            {"prefetch_calls_per_step", per_step(steady.prefetches)},
            {"driver_calls_per_step",
             per_step(steady.allocations + steady.frees + steady.advice + steady.discards)}};
  }

  static SequenceRun run_once(const Request& request, const OperationSequence& sequence,
                              std::size_t warm_steps) {
    Adapter allocator(request);
    const std::vector<cudaStream_t> streams = Streams::first(sequence.streams);
    std::vector<void*> held(sequence.slots);
    std::vector<std::size_t> bounds = sequence.step_begins;
    bounds.push_back(sequence.operations.size());
    SequenceRun run;
    const DriverCalls start = DriverCalls::so_far();
    run_operations(allocator, sequence, {0, bounds[warm_steps]}, streams, held);
    const DriverCalls warm = DriverCalls::so_far();
    for (std::size_t step = warm_steps; step + 1 < bounds.size(); ++step) {
      const Stopwatch watch;
      run_operations(allocator, sequence, {bounds[step], bounds[step + 1]}, streams, held);
      run.step_ns.push_back(watch.running_ns() /
                            static_cast<double>(bounds[step + 1] - bounds[step]));
    }
    run.calls = DriverCalls::so_far().since(start);
    run.steady_calls = DriverCalls::so_far().since(warm);
    run.reserved_bytes = allocator.peak_reserved_bytes();
    free_remaining(allocator, sequence, streams, held);
    return run;
  }

  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  static void run_operations(Adapter& allocator, const OperationSequence& sequence, Range range,
                             const std::vector<cudaStream_t>& streams, std::vector<void*>& held) {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const Operation& operation = sequence.operations[i];
      const cudaStream_t stream = streams[operation.stream];
      void*& block = held[operation.slot];
      if (operation.kind == OperationKind::kAllocate) {
        block = allocator.allocate(operation.size_bytes, stream);
      } else {
        allocator.free(block, operation.size_bytes, stream);
        block = nullptr;
      }
    }
  }

  static void free_remaining(Adapter& allocator, const OperationSequence& sequence,
                             const std::vector<cudaStream_t>& streams, std::vector<void*>& held) {
    std::vector<const Operation*> last(sequence.slots);
    for (const Operation& operation : sequence.operations) last[operation.slot] = &operation;
    for (const Operation* operation : last) {
      if (operation == nullptr || operation->kind == OperationKind::kFree) continue;
      allocator.free(held[operation->slot], operation->size_bytes, streams[operation->stream]);
    }
  }

  // Parameters: size, pairs. Runs exactly `pairs` pairs, for instruction counts from outside.
  static Json count(const Request& request) {
    Adapter allocator(request);
    const std::size_t size_bytes = request.number("size");
    const std::uint64_t pairs = request.number("pairs");
    for (std::uint64_t i = 0; i < pairs; ++i) one_pair(allocator, size_bytes, nullptr);
    return {{"pairs", pairs}};
  }

  // Parameters: size (default: 64 sizes from 512 B to 32 MiB), blocks, rounds. Moves blocks of the
  // host to the device and back, one after another. Counts prefetches per move, in each direction.
  static Json moves(const Request& request) {
    if constexpr (!requires(Adapter & allocator, void* block) {
                    allocator.move_to_device(block);
                  }) {
      throw std::invalid_argument("it has no call that moves a block");
    } else {
      Adapter allocator(request);
      const std::size_t blocks = request.number("blocks", 64);
      const std::size_t size_bytes = request.number("size", 0);
      std::vector<std::uint64_t> sizes(blocks, size_bytes);
      if (size_bytes == 0) sizes = spread_sizes(blocks, request.number("seed", 1));
      std::vector<void*> held;
      for (std::uint64_t each : sizes) held.push_back(allocator.allocate_on_host(each));
      const std::uint64_t rounds = request.number("rounds", 4);
      std::uint64_t to_device = 0, to_host = 0;
      for (std::uint64_t round = 0; round < rounds; ++round) {
        to_device += prefetches_of([&] {
          for (void* block : held) allocator.move_to_device(block);
        });
        to_host += prefetches_of([&] {
          for (void* block : held) allocator.move_to_host(block);
        });
      }
      for (std::size_t i = 0; i < blocks; ++i) allocator.free(held[i], sizes[i], nullptr);
      const auto each_way = static_cast<double>(rounds * blocks);
      return {{"to_device", static_cast<double>(to_device) / each_way},
              {"to_host", static_cast<double>(to_host) / each_way}};
    }
  }

  template <class Calls>
  static std::uint64_t prefetches_of(Calls calls) {
    const DriverCalls before = DriverCalls::so_far();
    calls();
    return DriverCalls::so_far().since(before).prefetches;
  }

  // Measures the time of stand-in calls that some allocators make in every pair, and others never.
  static Json calls(const Request& request) {
    int device = 0;
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
      throw std::runtime_error("no event");
    }
    const double get_device = time_rounds(request, [&] { cudaGetDevice(&device); });
    const double record = time_rounds(request, [&] { cudaEventRecord(event, nullptr); });
    const double query = time_rounds(request, [&] { cudaEventQuery(event); });
    const double allocate = time_rounds(request, [&] {
      void* block = nullptr;
      cudaMalloc(&block, std::size_t{2} << 20);
      cudaFree(block);
    });
    cudaEventDestroy(event);
    return {{"cudaGetDevice", get_device},
            {"cudaEventRecord", record},
            {"cudaEventQuery", query},
            {"cudaMalloc and cudaFree", allocate}};
  }

  // Parameters: size, live. Measures the growth of this process's private memory per live block.
  // Run this once per process: memory that an earlier workload freed would be reused and not
  // counted.
  static Json metadata(const Request& request) {
    if constexpr (!Adapter::kMeasuresMetadata) {
      throw std::invalid_argument("not separable from the machine's own memory");
    } else {
      Adapter allocator(request);
      const std::size_t size_bytes = request.number("size");
      std::vector<void*> held(request.number("live"));
      for (void*& block : held) block = &block;  // touch its pages before the baseline
      one_pair(allocator, size_bytes, nullptr);
      const PrivateMemory before = PrivateMemory::now();
      for (void*& block : held) block = allocator.allocate(size_bytes, nullptr);
      const PrivateMemory grown = PrivateMemory::now().since(before);
      for (void* block : held) allocator.free(block, size_bytes, nullptr);
      const auto blocks = static_cast<double>(held.size());
      const double bytes = static_cast<double>(grown.anonymous_bytes) / blocks;
      return {{"bytes_per_block", bytes},
              {"heap_bytes_per_block", static_cast<double>(grown.heap_bytes) / blocks},
              {"percent_of_live", 100 * bytes / static_cast<double>(size_bytes)}};
    }
  }
};

}  // namespace uvm::bench
