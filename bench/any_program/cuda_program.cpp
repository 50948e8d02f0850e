// A program that uses only CUDA's runtime, with measured allocations. Prints one line of JSON:
//   cuda_program pairs   ns of a cudaMalloc and its cudaFree, by size, in steady state
//   cuda_program steps   allocations that reached the driver in each of ten equal steps
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

namespace {

constexpr std::array<std::size_t, 5> kSizes = {512, 64 << 10, 1 << 20, 2 << 20, 20 << 20};
constexpr int kPairs = 20000;
constexpr int kRounds = 7;
constexpr int kSteps = 10;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_program: %s\n", cudaGetErrorName(error));
  std::exit(1);
}

double pair_ns(std::size_t size_bytes) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kPairs; ++i) {
      void* block = nullptr;
      check(cudaMalloc(&block, size_bytes));
      check(cudaFree(block));
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = round == 0 ? took.count() / kPairs : std::min(best, took.count() / kPairs);
  }
  return best;
}

// Allocates like a training step: buffers of many sizes, stream-ordered, synchronous and pinned.
// Some outlive the step.
void step(cudaStream_t stream, std::vector<void*>* kept) {
  for (void* block : *kept) check(cudaFree(block));
  kept->clear();
  std::vector<void*> temporary;
  for (std::size_t layer = 1; layer <= 24; ++layer) {
    void* activation = nullptr;
    check(cudaMalloc(&activation, layer * 300000));
    kept->push_back(activation);
    void* workspace = nullptr;
    check(cudaMallocAsync(&workspace, 5 << 20, stream));
    check(cudaMemsetAsync(workspace, 0, 4096, stream));
    check(cudaFreeAsync(workspace, stream));
    void* staging = nullptr;
    check(cudaMallocHost(&staging, 100000 * layer));
    std::memset(staging, 1, 4096);
    check(cudaMemcpyAsync(activation, staging, 4096, cudaMemcpyHostToDevice, stream));
    temporary.push_back(staging);
  }
  check(cudaStreamSynchronize(stream));
  for (void* staging : temporary) check(cudaFreeHost(staging));
  check(cudaDeviceSynchronize());
}

std::uint64_t driver_allocations() {
  using Read = void (*)(uvmsim_counters*);
  // Only the simulated driver counts allocations.
  void* simulator = dlopen("libuvmsim.so", RTLD_NOW | RTLD_NOLOAD);
  const auto read = simulator != nullptr
                        ? reinterpret_cast<Read>(dlsym(simulator, "uvmsim_get_counters"))
                        : nullptr;
  if (read == nullptr) {
    std::fprintf(stderr, "cuda_program: no simulated device\n");
    std::exit(1);
  }
  uvmsim_counters counters{};
  read(&counters);
  return counters.managed_allocations + counters.device_allocations + counters.pinned_allocations;
}

}  // namespace

int main(int count, char** arguments) {
  const char* what = count == 2 ? arguments[1] : "";
  check(cudaSetDevice(0));
  check(cudaFree(nullptr));
  if (std::strcmp(what, "pairs") == 0) {
    const char* separator = "{";
    for (const std::size_t size : kSizes) {
      std::printf("%s\"%zu\": %.1f", separator, size, pair_ns(size));
      separator = ", ";
    }
    std::printf("}\n");
    return 0;
  }
  if (std::strcmp(what, "steps") == 0) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream));
    std::vector<void*> kept;
    for (int i = 0; i < kSteps; ++i) {
      const std::uint64_t before = driver_allocations();
      step(stream, &kept);
      std::printf("%s%llu", i == 0 ? "[" : ", ",
                  static_cast<unsigned long long>(driver_allocations() - before));
    }
    std::printf("]\n");
    return 0;
  }
  std::fprintf(stderr, "cuda_program: the argument is '%s'; accepted: pairs, steps\n", what);
  return 2;
}
