// Measures CPU time per block of a batch of 16 small blocks that is allocated and freed. Compares
// SmallArena with a jemalloc arena with an explicit thread cache, jemalloc's fastest form. The
// segments are inaccessible address space, so no device is needed.
#include <benchmark/benchmark.h>
#include <jemalloc/jemalloc.h>
#include <sys/mman.h>

#include <cstddef>
#include <vector>

#include "allocator/small/small_arena.hpp"
#include "storage/pages.hpp"

namespace {

constexpr std::size_t kBatch = 16;

class ReservedSegments : public uvm::ExtentSource {
 public:
  ReservedSegments() {
    constexpr std::size_t kSegments = 512;
    void* mapped = mmap(nullptr, (kSegments + 1) * uvm::SmallArena::kSegmentBytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    std::size_t base = uvm::round_up(uvm::address_of(mapped), uvm::SmallArena::kSegmentBytes);
    for (std::size_t i = 0; i < kSegments; ++i) {
      free_.push_back(reinterpret_cast<void*>(base + i * uvm::SmallArena::kSegmentBytes));
    }
  }
  void* take() noexcept override {
    if (free_.empty()) return nullptr;
    void* segment = free_.back();
    free_.pop_back();
    return segment;
  }
  void give_back(void* segment) noexcept override { free_.push_back(segment); }
  bool owns(const void*) const noexcept override { return true; }

 private:
  std::vector<void*> free_;
};

void count_blocks(benchmark::State& state) {
  state.counters["per_block"] = benchmark::Counter(
      kBatch, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// `live` blocks keep slabs alive, as in a program. Without them, each batch creates slabs.
void small_arena_batch(benchmark::State& state) {
  auto size_bytes = static_cast<std::size_t>(state.range(0));
  auto live = static_cast<std::size_t>(state.range(1));
  ReservedSegments segments;
  uvm::SmallArena arena(segments);
  std::vector<void*> others(live);
  arena.allocate(size_bytes, others.data(), live);
  void* blocks[kBatch];
  for (auto _ : state) {
    arena.allocate(size_bytes, blocks, kBatch);
    benchmark::DoNotOptimize(blocks);
    arena.free(blocks, kBatch, size_bytes);
  }
  count_blocks(state);
}

void thread_cache_batch(benchmark::State& state) {
  auto size_bytes = static_cast<std::size_t>(state.range(0));
  unsigned arena = 0;
  unsigned cache = 0;
  std::size_t index_bytes = sizeof arena;
  uvm_je_mallctl("arenas.create", &arena, &index_bytes, nullptr, 0);
  uvm_je_mallctl("tcache.create", &cache, &index_bytes, nullptr, 0);
  int flags = static_cast<int>(MALLOCX_ARENA(arena) | MALLOCX_TCACHE(cache) | MALLOCX_ALIGN(512));
  void* blocks[kBatch];
  for (auto _ : state) {
    for (void*& block : blocks) block = uvm_je_mallocx(size_bytes, flags);
    benchmark::DoNotOptimize(blocks);
    for (void* block : blocks) uvm_je_sdallocx(block, size_bytes, flags);
  }
  uvm_je_mallctl("tcache.destroy", nullptr, nullptr, &cache, sizeof cache);
  count_blocks(state);
}

}  // namespace

BENCHMARK(small_arena_batch)->ArgNames({"size", "live"})->ArgsProduct({{512, 4096}, {0, 1000}});
BENCHMARK(thread_cache_batch)->ArgName("size")->Arg(512)->Arg(4096);
BENCHMARK_MAIN();
