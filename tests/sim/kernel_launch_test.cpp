// Kernels that a program launches itself and a plug-in runs (uvmsim_kernels_launch).
#include <cuda_runtime_api.h>

#include <vector>

#include <uvmalloc/sim/uvmsim.h>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

using RegisterFunction = void(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                              dim3*, int*);
using LaunchKernel = cudaError_t(const void*, dim3, dim3, void**, std::size_t, cudaStream_t);

constexpr int kCount = 1000;

class KernelLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(RT(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking), cudaSuccess);
    void* memory = nullptr;
    ASSERT_EQ(managed(&memory, sizeof(float) * kCount, cudaMemAttachGlobal), cudaSuccess);
    values = static_cast<float*>(memory);
    std::fill_n(values, kCount, 2.0f);
  }
  void TearDown() override {
    EXPECT_EQ(RT(cudaFree)(values), cudaSuccess);
    EXPECT_EQ(RT(cudaStreamDestroy)(stream), cudaSuccess);
  }

  // scale(address, 3, kCount) by `threads` threads, under the name `symbol`.
  cudaError_t launch(const char* symbol, float* address, unsigned threads) {
    static std::vector<char> stubs(100);  // an address stands for a kernel
    static std::size_t used = 0;
    const char* stub = &stubs[used++];
    StandIn::runtime().function<RegisterFunction>("__cudaRegisterFunction")(
        nullptr, stub, nullptr, symbol, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    float factor = 3.0f;
    int count = kCount;
    void* arguments[] = {&address, &factor, &count};
    return StandIn::runtime().function<LaunchKernel>("cudaLaunchKernel")(
        stub, dim3(threads / 100), dim3(100), arguments, 0, stream);
  }

  cudaError_t (*managed)(void**, std::size_t, unsigned) =
      StandIn::runtime().function<cudaError_t(void**, std::size_t, unsigned)>("cudaMallocManaged");
  cudaStream_t stream = nullptr;
  float* values = nullptr;
};

TEST_F(KernelLaunch, AKernelOfThePluginRunsOnTheDevice) {
  ASSERT_EQ(launch("_Z5scalePffi", values, 800), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamSynchronize)(stream), cudaSuccess);
  std::size_t resident_bytes = 0;
  ASSERT_EQ(uvmsim_residency(values, sizeof(float) * kCount, 0, &resident_bytes), UVMSIM_OK);
  EXPECT_EQ(resident_bytes, sizeof(float) * kCount) << "it was touched there";
  EXPECT_EQ(values[0], 7.0f);
  EXPECT_EQ(values[799], 7.0f);
  EXPECT_EQ(values[800], 2.0f) << "beyond the grid";
}

TEST_F(KernelLaunch, MemoryThatTheDeviceCannotReachIsAnIllegalAddress) {
  std::vector<float> on_host(kCount);
  EXPECT_EQ(launch("_Z5scalePffi", on_host.data(), 800), cudaErrorIllegalAddress);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorIllegalAddress);
}

TEST_F(KernelLaunch, AKernelThatThePluginDoesNotKnowHasNoImage) {
  EXPECT_EQ(launch("_Z7unknownPffi", values, 800), cudaErrorNoKernelImageForDevice);
  EXPECT_EQ(values[0], 2.0f);
}

TEST_F(KernelLaunch, AKernelThatCannotBeRecordedEndsACapture) {
  ASSERT_EQ(RT(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(launch("_Z5scalePffi", values, 800), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(values[0], 2.0f);
  cudaGraph_t graph = nullptr;
  RT(cudaStreamEndCapture)(stream, &graph);
}

}  // namespace
}  // namespace uvmsim::test
