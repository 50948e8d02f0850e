// Two streams, an event and device memory of the stand-in runtime, for tests of captures and
// graphs.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

#include "stand_in_library.hpp"

namespace uvmsim::test {

class StreamWorkTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 4096;

  void SetUp() override {
    ASSERT_EQ(RT(cudaSetDevice)(0), cudaSuccess);
    stream_ = make_stream(cudaStreamNonBlocking);
    other_ = make_stream(cudaStreamNonBlocking);
    ASSERT_EQ(RT(cudaEventCreateWithFlags)(&event_, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(RT(cudaMalloc)(&memory_, kBytes), cudaSuccess);
    ASSERT_EQ(RT(cudaMemset)(memory_, 0, kBytes), cudaSuccess);
    ASSERT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess);
    uvmsim_reset_counters();
  }

  void TearDown() override {
    RT(cudaGetLastError)();
    for (cudaStream_t stream : streams_) EXPECT_EQ(RT(cudaStreamDestroy)(stream), cudaSuccess);
    EXPECT_EQ(RT(cudaEventDestroy)(event_), cudaSuccess);
    EXPECT_EQ(RT(cudaFree)(memory_), cudaSuccess) << "a capture was left open";
  }

  cudaStream_t make_stream(unsigned flags) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(RT(cudaStreamCreateWithFlags)(&stream, flags), cudaSuccess);
    streams_.push_back(stream);
    return stream;
  }

  void destroy_stream(cudaStream_t stream) {
    EXPECT_EQ(RT(cudaStreamDestroy)(stream), cudaSuccess);
    std::erase(streams_, stream);
  }

  unsigned char byte(std::size_t offset = 0) {
    unsigned char value = 0;
    EXPECT_EQ(
        RT(cudaMemcpy)(&value, static_cast<char*>(memory_) + offset, 1, cudaMemcpyDeviceToHost),
        cudaSuccess);
    return value;
  }

  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* memory_ = nullptr;

 private:
  std::vector<cudaStream_t> streams_;
};

}  // namespace uvmsim::test
