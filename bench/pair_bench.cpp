// Measures allocate and free of one size, served by the cache, through the public entry points.
// Statistics, page map and storage records are on. The free gets only the pointer. Runs on the
// visible CUDA device; for the simulated one, LD_LIBRARY_PATH must have the stand-ins.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <uvmalloc/registry.hpp>
#include "allocator/interface.hpp"

namespace {

// Never destroyed: at process exit, this thread's data of the driver library is destroyed before
// static objects are.
uvm::CachingManagedAllocator& allocator() {
  static auto& instance = *[] {
    uvm::RuntimeChoice choice = uvm::open_runtime("auto");
    if (choice.runtime == nullptr) {
      std::fprintf(stderr, "pair_bench: %s\n", choice.reason.c_str());
      std::exit(1);
    }
    return new uvm::CachingManagedAllocator(std::move(choice.runtime), uvm::Configuration{});
  }();
  return instance;
}

void cache_hit_pair(benchmark::State& state, uvm::Facade facade) {
  auto size_bytes = static_cast<std::size_t>(state.range(0));
  uvm::CachingManagedAllocator& ours = allocator();
  ours.free(ours.allocate(facade, 0, size_bytes));
  for (auto _ : state) {
    void* block = ours.allocate(facade, 0, size_bytes);
    benchmark::DoNotOptimize(block);
    ours.free(block);
  }
}

void device_pair(benchmark::State& state) {
  cache_hit_pair(state, uvm::Facade::kDevice);
}
void host_pair(benchmark::State& state) {
  cache_hit_pair(state, uvm::Facade::kHost);
}

void malloc_pair(benchmark::State& state) {
  for (auto _ : state) {
    void* block = std::malloc(static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

constexpr long kSizes[] = {512, 64 << 10, 2 << 20, 20 << 20, 256 << 20};

void sizes(benchmark::internal::Benchmark* benchmark) {
  for (long size : kSizes) benchmark->Arg(size);
}

}  // namespace

BENCHMARK(device_pair)->Apply(sizes);
BENCHMARK(host_pair)->Apply(sizes);
BENCHMARK(malloc_pair)->Apply(sizes);
BENCHMARK_MAIN();
