// Kernels that a program launches and a plug-in runs (uvmsim_kernels_launch).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <utility>
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

  // Registers a kernel with the name `symbol` and returns the address that stands for the kernel.
  static const void* registered(const char* symbol) {
    static std::vector<char> stubs(100);  // one address for each kernel
    static std::size_t used = 0;
    const char* stub = &stubs[used++];
    StandIn::runtime().function<RegisterFunction>("__cudaRegisterFunction")(
        nullptr, stub, nullptr, symbol, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    return stub;
  }

  // Launches scale(address, 3, kCount) with `threads` threads, under the name `symbol`.
  cudaError_t launch(const char* symbol, float* address, unsigned threads) {
    const void* stub = registered(symbol);
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

TEST_F(KernelLaunch, TheDriverTellsTheParametersThatThePluginDeclares) {
  const void* kernel = registered("_Z8row_sumsPKfmiiPf");
  cudaFunction_t function = nullptr;
  ASSERT_EQ(RT(cudaGetFuncBySymbol)(&function, kernel), cudaSuccess);
  cudaKernel_t handle = nullptr;
  ASSERT_EQ(RT(cudaGetKernel)(&handle, kernel), cudaSuccess);
  std::vector<std::pair<std::size_t, std::size_t>> found(5);
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto& [offset, size] = found[i];
    ASSERT_EQ(CU(cuFuncGetParamInfo)(function, i, &offset, &size), CUDA_SUCCESS);
    std::size_t same = 0;
    EXPECT_EQ(CU(cuKernelGetParamInfo)(handle, i, &same, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(same, offset);
    EXPECT_EQ(RT(cudaFuncGetParamInfo)(kernel, i, &same, &size), cudaSuccess);
    EXPECT_EQ(same, offset);
  }
  EXPECT_EQ(found, (std::vector<std::pair<std::size_t, std::size_t>>{
                       {0, 8}, {8, 8}, {16, 4}, {20, 4}, {24, 8}}));
  std::size_t none = 0;
  EXPECT_EQ(CU(cuFuncGetParamInfo)(function, 5, &none, &none), CUDA_ERROR_INVALID_VALUE);
  const void* unknown = registered("_Z7unknownPffi");
  ASSERT_EQ(RT(cudaGetFuncBySymbol)(&function, unknown), cudaSuccess);
  EXPECT_EQ(CU(cuFuncGetParamInfo)(function, 0, &none, &none), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(RT(cudaGetFuncBySymbol)(&function, &none), cudaErrorInvalidDeviceFunction);
  RT(cudaGetLastError)();
}

// A graph of one kernel that mixes `values` with `values`.
class KernelGraph : public KernelLaunch {
 protected:
  void SetUp() override {
    KernelLaunch::SetUp();
    kernel = registered("_Z3mixPfPKffi");
    graph = captured(0.0f);
    std::size_t count = 1;
    ASSERT_EQ(RT(cudaGraphGetNodes)(graph, &node, &count), cudaSuccess);
    ASSERT_EQ(count, 1u);
    ASSERT_EQ(RT(cudaGraphInstantiateWithFlags)(&executable, graph, 0), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(RT(cudaGraphExecDestroy)(executable), cudaSuccess);
    EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
    KernelLaunch::TearDown();
  }
  void run() {
    ASSERT_EQ(RT(cudaGraphLaunch)(executable, stream), cudaSuccess);
    ASSERT_EQ(RT(cudaStreamSynchronize)(stream), cudaSuccess);
  }
  // The kernel arguments are local variables of this function, so the capture must copy them.
  cudaGraph_t captured(float factor, int kernels = 1) {
    cudaGraph_t made = nullptr;
    void* arguments[] = {&values, &values, &factor, &elements};
    EXPECT_EQ(RT(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    for (int i = 0; i < kernels; ++i) {
      EXPECT_EQ(StandIn::runtime().function<LaunchKernel>("cudaLaunchKernel")(
                    kernel, dim3(1), dim3(1), arguments, 0, stream),
                cudaSuccess);
    }
    EXPECT_EQ(RT(cudaStreamEndCapture)(stream, &made), cudaSuccess);
    return made;
  }

  int elements = kCount;
  const void* kernel = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t node = nullptr;
  cudaGraphExec_t executable = nullptr;
};

TEST_F(KernelGraph, ANodeTellsHowItsKernelWasLaunched) {
  CUDA_KERNEL_NODE_PARAMS found{};
  ASSERT_EQ(CU(cuGraphKernelNodeGetParams_v2)(node, &found), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<const void*>(found.func), kernel);
  EXPECT_EQ(*static_cast<float**>(found.kernelParams[0]), values);
  EXPECT_EQ(*static_cast<float*>(found.kernelParams[2]), 0.0f);
  EXPECT_EQ(*static_cast<int*>(found.kernelParams[3]), kCount);
  cudaKernelNodeParams by_runtime{};
  ASSERT_EQ(RT(cudaGraphKernelNodeGetParams)(node, &by_runtime), cudaSuccess);
  EXPECT_EQ(by_runtime.kernelParams, found.kernelParams);
  EXPECT_EQ(by_runtime.gridDim.x, 1u);
}

TEST_F(KernelGraph, ALaunchOfAnotherGraphHasThatGraph) {
  cudaGraph_t parent = nullptr;
  ASSERT_EQ(RT(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(RT(cudaGraphLaunch)(executable, stream), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamEndCapture)(stream, &parent), cudaSuccess);
  cudaGraphNode_t launch = nullptr;
  std::size_t count = 1;
  ASSERT_EQ(RT(cudaGraphGetNodes)(parent, &launch, &count), cudaSuccess);
  CUgraph child = nullptr;
  ASSERT_EQ(CU(cuGraphChildGraphNodeGetGraph)(launch, &child), CUDA_SUCCESS);
  CUgraphNode below = nullptr;
  ASSERT_EQ(CU(cuGraphGetNodes)(child, &below, &count), CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS found{};
  ASSERT_EQ(CU(cuGraphKernelNodeGetParams_v2)(below, &found), CUDA_SUCCESS);
  EXPECT_EQ(*static_cast<float**>(found.kernelParams[0]), values);
  EXPECT_EQ(CU(cuGraphKernelNodeGetParams_v2)(launch, &found), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuGraphChildGraphNodeGetGraph)(node, &child), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(RT(cudaGraphDestroy)(child), cudaSuccess) << "it belongs to its parent";
  RT(cudaGetLastError)();
  EXPECT_EQ(RT(cudaGraphDestroy)(parent), cudaSuccess);
}

TEST_F(KernelGraph, AnUpdatedGraphDoesWhatTheOtherGraphDoes) {
  run();
  EXPECT_EQ(values[0], 3.0f);
  cudaGraph_t other = captured(1.0f);
  cudaGraphExecUpdateResultInfo info{};
  EXPECT_EQ(RT(cudaGraphExecUpdate)(executable, other, &info), cudaSuccess);
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  run();
  EXPECT_EQ(values[0], 7.0f);
  cudaGraph_t longer = captured(1.0f, 2);
  EXPECT_EQ(RT(cudaGraphExecUpdate)(executable, longer, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  RT(cudaGetLastError)();
  run();
  EXPECT_EQ(values[0], 15.0f);
  for (cudaGraph_t each : {other, longer}) EXPECT_EQ(RT(cudaGraphDestroy)(each), cudaSuccess);
}

TEST_F(KernelGraph, AKernelOfAnExecutableGraphGetsOtherArguments) {
  float factor = 2.0f;
  void* arguments[] = {&values, &values, &factor, &elements};
  cudaKernelNodeParams parameters{};
  parameters.func = const_cast<void*>(kernel);
  parameters.gridDim = dim3(1);
  parameters.blockDim = dim3(1);
  parameters.kernelParams = arguments;
  ASSERT_EQ(RT(cudaGraphExecKernelNodeSetParams)(executable, node, &parameters), cudaSuccess);
  factor = 100.0f;
  run();
  EXPECT_EQ(values[0], 7.0f) << "2 * 2 + 2 + 1";
  EXPECT_EQ(RT(cudaGraphExecKernelNodeSetParams)(executable, nullptr, &parameters),
            cudaErrorInvalidValue);
  RT(cudaGetLastError)();
}

}  // namespace
}  // namespace uvmsim::test
