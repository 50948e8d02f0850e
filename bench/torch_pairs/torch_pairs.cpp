// Measures cache-hit pairs of torch's allocator in this process, through c10's interface.
#include <chrono>
#include <cstddef>

#include <c10/cuda/CUDACachingAllocator.h>

// Returns the mean nanoseconds of one raw_alloc and raw_delete of `size_bytes` on the current
// device and stream. Measures `iterations` pairs, after ten that fill the cache.
extern "C" __attribute__((visibility("default"))) double uvmalloc_bench_torch_pair_ns(
    std::size_t size_bytes, int iterations) {
  c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator =
      c10::cuda::CUDACachingAllocator::get();
  for (int warm = 0; warm < 10; ++warm) allocator->raw_delete(allocator->raw_alloc(size_bytes));
  auto start = std::chrono::steady_clock::now();
  for (int pair = 0; pair < iterations; ++pair)
    allocator->raw_delete(allocator->raw_alloc(size_bytes));
  std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / iterations;
}
