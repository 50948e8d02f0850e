// Measures the cost of recording: an event while tracing is off, an event with its time while
// tracing is on, an allocation and a free in a tight loop, and clock reads. The trace is a
// temporary file.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "allocator/trace/trace_recorder.hpp"

namespace {

const std::string& file() {
  static const std::string name =
      std::filesystem::temp_directory_path() / ("uvmalloc-trace-bench." + std::to_string(getpid()));
  return name;
}

void record(benchmark::State& state, uvm::TraceRecorder* recorder) {
  char place = 0;
  for (auto _ : state) {
    recorder->allocated(recorder->now(), {uvm::Facade::kDevice, 0, &place, 100, 512, nullptr});
    benchmark::ClobberMemory();
  }
}

uvm::TraceRecorder shared_recorder;

void event_off(benchmark::State& state) {
  uvm::TraceRecorder recorder;
  record(state, &recorder);
}

void start(benchmark::State& state) {
  if (state.thread_index() != 0) return;
  if (std::string reason = shared_recorder.start(file(), {{"device", 0}}); !reason.empty()) {
    state.SkipWithError(reason.c_str());
  }
}

void stop(const benchmark::State& state) {
  if (state.thread_index() != 0) return;
  shared_recorder.stop();
  std::filesystem::remove(file());
}

void event_on(benchmark::State& state) {
  start(state);
  record(state, &shared_recorder);
  stop(state);
}

void pair_on(benchmark::State& state) {
  start(state);
  char place = 0;
  const uvm::TraceBlock block{uvm::Facade::kDevice, 0, &place, 100, 512, nullptr};
  for (auto _ : state) {
    shared_recorder.allocated(shared_recorder.now(), block);
    shared_recorder.freed(shared_recorder.now(), block);
  }
  stop(state);
}

void read_clock(benchmark::State& state, uvm::TraceClock clock) {
  for (auto _ : state) benchmark::DoNotOptimize(clock.read());
}

}  // namespace

BENCHMARK(event_off);
BENCHMARK(event_on)->Iterations(4'000'000);
BENCHMARK(event_on)->Iterations(2'000'000)->Threads(2);
BENCHMARK(pair_on)->Iterations(4'000'000);
BENCHMARK(pair_on)->Iterations(2'000'000)->Threads(2);
BENCHMARK_CAPTURE(read_clock, best, uvm::TraceClock());
BENCHMARK_CAPTURE(read_clock, monotonic, uvm::TraceClock(uvm::TraceClockKind::kNanoseconds));
BENCHMARK_MAIN();
