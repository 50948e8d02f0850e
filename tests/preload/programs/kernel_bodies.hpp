// What each thread of the samples' kernels does. nvcc compiles this file for the device, and
// cpu_kernels.cpp compiles it for the simulated device.
#pragma once

#include <cstddef>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

HOST_DEVICE inline void scale_element(float* values, float factor, int index) {
  values[index] = values[index] * factor + 1.0f;
}

// Sums one row of a pitched image.
HOST_DEVICE inline void sum_row(const float* image, std::size_t pitch_bytes, int width, float* sums,
                                int row) {
  const auto* first = reinterpret_cast<const float*>(reinterpret_cast<const char*>(image) +
                                                     static_cast<std::size_t>(row) * pitch_bytes);
  float sum = 0.0f;
  for (int column = 0; column < width; ++column) sum += first[column];
  sums[row] = sum;
}

HOST_DEVICE inline void mix_element(float* to, const float* from, float factor, int index) {
  to[index] = to[index] * factor + from[index] + 1.0f;
}

// Arguments that are passed as one structure.
struct View {
  float* values;
  int count;
};
struct MixViews {
  int tag;
  View to;
  View from;
};
