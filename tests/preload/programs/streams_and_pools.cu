// Three streams that allocate in stream order, compute and copy to pinned memory, step by step. The
// argument is the number of steps. Each step prints what the streams computed.
#include "check.hpp"
#include "kernel_bodies.hpp"

__global__ void scale(float* values, float factor, int count) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < count) scale_element(values, factor, index);
}

int main(int argc, char** argv) {
  constexpr int kStreams = 3;
  constexpr int kCount = 1 << 18;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  cudaStream_t streams[kStreams];
  cudaEvent_t done[kStreams];
  float* results[kStreams];
  for (int i = 0; i < kStreams; ++i) {
    CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
    CHECK(cudaMallocHost(reinterpret_cast<void**>(&results[i]), kBytes));
  }
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < kStreams; ++i) {
      float* values = nullptr;
      float* copy = nullptr;
      CHECK(cudaMallocAsync(reinterpret_cast<void**>(&values), kBytes, streams[i]));
      CHECK(cudaMallocAsync(reinterpret_cast<void**>(&copy), kBytes, streams[i]));
      CHECK(cudaMemsetAsync(values, 0, kBytes, streams[i]));
      for (int round = 0; round <= i; ++round) {
        scale<<<kCount / 256, 256, 0, streams[i]>>>(values, 1.5f, kCount);
        CHECK(cudaGetLastError());
      }
      CHECK(cudaMemcpyAsync(copy, values, kBytes, cudaMemcpyDeviceToDevice, streams[i]));
      CHECK(cudaFreeAsync(values, streams[i]));
      CHECK(cudaMemcpyAsync(results[i], copy, kBytes, cudaMemcpyDeviceToHost, streams[i]));
      CHECK(cudaFreeAsync(copy, streams[i]));
      CHECK(cudaEventRecord(done[i], streams[i]));
    }
    double sum = 0.0;
    for (int i = 0; i < kStreams; ++i) {
      CHECK(cudaEventSynchronize(done[i]));
      for (int index = 0; index < kCount; ++index) sum += results[i][index];
    }
    std::printf("step %d: %.3f\n", step, sum);
  }
  for (int i = 0; i < kStreams; ++i) {
    CHECK(cudaFreeHost(results[i]));
    CHECK(cudaEventDestroy(done[i]));
    CHECK(cudaStreamDestroy(streams[i]));
  }
  CHECK(cudaDeviceSynchronize());
  return 0;
}
