// Images in pitched memory, filled from pinned memory and summed row by row. Each step allocates
// and frees everything. The argument is the number of steps.
#include "check.hpp"
#include "kernel_bodies.hpp"

__global__ void row_sums(const float* image, std::size_t pitch_bytes, int width, int height,
                         float* sums) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < height) sum_row(image, pitch_bytes, width, sums, row);
}

int main(int argc, char** argv) {
  constexpr int kWidth = 1000;
  constexpr int kHeight = 700;
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  for (int step = 0; step < steps; ++step) {
    float* pinned = nullptr;
    float* image = nullptr;
    float* sums = nullptr;
    float* on_host = nullptr;
    std::size_t pitch_bytes = 0;
    CHECK(cudaHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(float) * kWidth * kHeight,
                        cudaHostAllocDefault));
    CHECK(cudaMallocHost(reinterpret_cast<void**>(&on_host), sizeof(float) * kHeight));
    CHECK(cudaMallocPitch(reinterpret_cast<void**>(&image), &pitch_bytes, sizeof(float) * kWidth,
                          kHeight));
    CHECK(cudaMalloc(reinterpret_cast<void**>(&sums), sizeof(float) * kHeight));
    if (pitch_bytes < sizeof(float) * kWidth) return 2;
    for (int i = 0; i < kWidth * kHeight; ++i) pinned[i] = static_cast<float>((i + step) % 7);
    CHECK(cudaMemcpy2D(image, pitch_bytes, pinned, sizeof(float) * kWidth, sizeof(float) * kWidth,
                       kHeight, cudaMemcpyHostToDevice));
    row_sums<<<(kHeight + 63) / 64, 64>>>(image, pitch_bytes, kWidth, kHeight, sums);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(on_host, sums, sizeof(float) * kHeight, cudaMemcpyDeviceToHost));
    std::printf("step %d: %.1f %.1f\n", step, on_host[0], on_host[kHeight - 1]);
    CHECK(cudaFree(sums));
    CHECK(cudaFree(image));
    CHECK(cudaFreeHost(on_host));
    CHECK(cudaFreeHost(pinned));
  }
  return 0;
}
