// The end of a context destroys everything that was made in that context, and nothing else.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <uvmalloc/sim/uvmsim.h>

#include "stand_in_library.hpp"

namespace uvmsim::test {
namespace {

constexpr std::size_t kOneMiB = std::size_t{1} << 20;

std::size_t free_on_device() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(RT(cudaMemGetInfo)(&free, &total), cudaSuccess);
  return free;
}

bool is_active(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(CU(cuDevicePrimaryCtxGetState)(device, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

class ContextEndTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
    ASSERT_EQ(RT(cudaSetDevice)(0), cudaSuccess);
    ASSERT_EQ(RT(cudaDeviceReset)(), cudaSuccess);
  }
  void TearDown() override {
    RT(cudaSetDevice)(0);
    RT(cudaDeviceReset)();
  }

  static CUcontext made_context(CUdevice device) {
    auto* create =
        reinterpret_cast<CUresult (*)(CUcontext*, CUctxCreateParams*, unsigned, CUdevice)>(
            StandIn::driver().find("cuCtxCreate_v4"));
    CUcontext context = nullptr;
    EXPECT_EQ(create(&context, nullptr, 0, device), CUDA_SUCCESS);
    return context;
  }
};

TEST_F(ContextEndTest, AResetEndsMemoryOfEveryKind) {
  const std::size_t before = free_on_device();
  void* device = nullptr;
  void* managed = nullptr;
  void* pinned = nullptr;
  void* ordered = nullptr;
  char own[4096] = {};
  ASSERT_EQ(RT(cudaMalloc)(&device, 8 * kOneMiB), cudaSuccess);
  ASSERT_EQ(RT(cudaMallocManaged)(&managed, 8 * kOneMiB, cudaMemAttachGlobal), cudaSuccess);
  ASSERT_EQ(RT(cudaMallocHost)(&pinned, 8 * kOneMiB), cudaSuccess);
  auto* allocate_async =
      StandIn::runtime().function<cudaError_t(void**, size_t, cudaStream_t)>("cudaMallocAsync");
  ASSERT_EQ(allocate_async(&ordered, 8 * kOneMiB, nullptr), cudaSuccess);
  ASSERT_EQ(RT(cudaHostRegister)(own, sizeof own, 0), cudaSuccess);
  ASSERT_LT(free_on_device(), before);
  ASSERT_EQ(RT(cudaDeviceReset)(), cudaSuccess);
  EXPECT_EQ(free_on_device(), before);
  EXPECT_EQ(RT(cudaFree)(device), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaFree)(managed), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaFree)(ordered), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaFreeHost)(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaHostUnregister)(own), cudaErrorHostMemoryNotRegistered);
  RT(cudaGetLastError)();
  void* next = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&next, 8 * kOneMiB), cudaSuccess);
  EXPECT_NE(next, device) << "a program that uses the old address must not meet other memory";
  EXPECT_EQ(RT(cudaFree)(next), cudaSuccess);
}

TEST_F(ContextEndTest, AResetEndsStreamsAndEvents) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(RT(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(RT(cudaEventCreateWithFlags)(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(RT(cudaDeviceReset)(), cudaSuccess);
  EXPECT_EQ(RT(cudaStreamSynchronize)(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(RT(cudaEventQuery)(event), cudaErrorInvalidResourceHandle);
  RT(cudaGetLastError)();
}

TEST_F(ContextEndTest, AResetEndsACapture) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(RT(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  ASSERT_EQ(RT(cudaDeviceReset)(), cudaSuccess);
  EXPECT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess) << "nothing captures any more";
}

TEST_F(ContextEndTest, AResetLeavesTheOtherDeviceAlone) {
  ASSERT_EQ(RT(cudaSetDevice)(1), cudaSuccess);
  void* other = nullptr;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&other, kOneMiB), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(RT(cudaSetDevice)(0), cudaSuccess);
  ASSERT_EQ(RT(cudaDeviceReset)(), cudaSuccess);
  EXPECT_EQ(RT(cudaStreamSynchronize)(stream), cudaSuccess);
  EXPECT_EQ(RT(cudaStreamDestroy)(stream), cudaSuccess);
  EXPECT_EQ(RT(cudaFree)(other), cudaSuccess);
}

TEST_F(ContextEndTest, TheRuntimeMakesTheContextAnewAndTheDriverDoesNot) {
  CUcontext context = nullptr;
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuCtxSetCurrent)(context), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuDevicePrimaryCtxReset_v2)(0), CUDA_SUCCESS);
  EXPECT_FALSE(is_active(0));
  CUdeviceptr memory = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&memory, kOneMiB), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  void* by_runtime = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&by_runtime, kOneMiB), cudaSuccess);
  EXPECT_TRUE(is_active(0));
  EXPECT_EQ(CU(cuMemAlloc_v2)(&memory, kOneMiB), CUDA_SUCCESS);
  // A reset does not release the context.
  EXPECT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(0), CUDA_SUCCESS);
}

TEST_F(ContextEndTest, APrimaryContextEndsWithItsLastUse) {
  CUcontext context = nullptr;
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 1), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 1), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuCtxPushCurrent_v2)(context), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(CU(cuMemAlloc_v2)(&memory, kOneMiB), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuDevicePrimaryCtxRelease_v2)(1), CUDA_SUCCESS);
  EXPECT_TRUE(is_active(1));
  if (CU(cuDevicePrimaryCtxRelease_v2)(1); !is_active(1)) {  // no other test retains the context
    EXPECT_EQ(CU(cuMemFree_v2)(memory), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 1), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(memory), CUDA_ERROR_INVALID_VALUE);
    CU(cuDevicePrimaryCtxRelease_v2)(1);
  }
  EXPECT_EQ(CU(cuCtxPopCurrent_v2)(&context), CUDA_SUCCESS);
}

TEST_F(ContextEndTest, AContextThatAProgramMadeTakesWhatItHasWithIt) {
  void* primary = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&primary, kOneMiB), cudaSuccess);
  const CUcontext made = made_context(0);
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(CU(cuMemAlloc_v2)(&memory, kOneMiB), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuCtxDestroy_v2)(made), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuMemFree_v2)(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuStreamSynchronize)(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuEventQuery)(event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(RT(cudaFree)(primary), cudaSuccess);
}

// A green context of half of the device's multiprocessors, made by the runtime's calls.
void* green_context(int device) {
  auto* get =
      StandIn::runtime().function<int(int, CUdevResource*, int)>("cudaDeviceGetDevResource");
  auto* split = StandIn::runtime()
                    .function<int(CUdevResource*, unsigned*, const CUdevResource*, CUdevResource*,
                                  unsigned, unsigned)>("cudaDevSmResourceSplitByCount");
  auto* describe = StandIn::runtime().function<int(CUdevResourceDesc*, CUdevResource*, unsigned)>(
      "cudaDevResourceGenerateDesc");
  auto* create = StandIn::runtime().function<int(void**, CUdevResourceDesc, int, unsigned)>(
      "cudaGreenCtxCreate");
  CUdevResource whole{};
  CUdevResource half{};
  CUdevResource rest{};
  CUdevResourceDesc description{};
  void* context = nullptr;
  unsigned count = 1;
  EXPECT_EQ(get(device, &whole, CU_DEV_RESOURCE_TYPE_SM), cudaSuccess);
  EXPECT_EQ(split(&half, &count, &whole, &rest, 0, whole.sm.smCount / 2), cudaSuccess);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(half.sm.smCount + rest.sm.smCount, whole.sm.smCount);
  EXPECT_EQ(describe(&description, &half, 1), cudaSuccess);
  EXPECT_EQ(create(&context, description, device, 0), cudaSuccess);
  return context;
}

TEST_F(ContextEndTest, AGreenContextTakesItsStreamsWithItAndNoMemory) {
  auto* create_stream = StandIn::runtime().function<int(cudaStream_t*, void*, unsigned, int)>(
      "cudaExecutionCtxStreamCreate");
  auto* destroy = StandIn::runtime().function<int(void*)>("cudaExecutionCtxDestroy");
  ASSERT_EQ(RT(cudaFree)(nullptr), cudaSuccess);  // the program uses the primary context too
  void* const context = green_context(0);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(create_stream(&stream, context, cudaStreamDefault, 0), cudaErrorInvalidValue);
  ASSERT_EQ(create_stream(&stream, context, cudaStreamNonBlocking, 0), cudaSuccess);
  CUgreenCtx of_stream = nullptr;
  ASSERT_EQ(CU(cuStreamGetGreenCtx)(stream, &of_stream), CUDA_SUCCESS);
  EXPECT_EQ(of_stream, context);

  CUcontext current = nullptr;
  ASSERT_EQ(CU(cuCtxFromGreenCtx)(&current, of_stream), CUDA_SUCCESS);
  CUcontext context_of_stream = nullptr;
  ASSERT_EQ(StandIn::driver().function<CUresult(CUstream, CUcontext*)>("cuStreamGetCtx")(
                stream, &context_of_stream),
            CUDA_SUCCESS);
  EXPECT_EQ(context_of_stream, current);
  ASSERT_EQ(CU(cuCtxPushCurrent_v2)(current), CUDA_SUCCESS);
  void* memory = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&memory, kOneMiB), cudaSuccess);
  ASSERT_EQ(CU(cuCtxPopCurrent_v2)(&current), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(current), CUDA_ERROR_INVALID_CONTEXT) << "it is a green one";

  ASSERT_EQ(destroy(context), cudaSuccess);
  EXPECT_EQ(destroy(context), cudaErrorDeviceUninitialized);
  EXPECT_EQ(RT(cudaStreamSynchronize)(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(RT(cudaFree)(memory), cudaSuccess);
  RT(cudaGetLastError)();
}

TEST_F(ContextEndTest, ADevicesExecutionContextIsItsPrimaryOne) {
  void* context = nullptr;
  int device = -1;
  auto* get = StandIn::runtime().function<int(void**, int)>("cudaDeviceGetExecutionCtx");
  auto* get_device = StandIn::runtime().function<int(int*, void*)>("cudaExecutionCtxGetDevice");
  ASSERT_EQ(get(&context, 1), cudaSuccess);
  ASSERT_EQ(get_device(&device, context), cudaSuccess);
  EXPECT_EQ(device, 1);
  CUcontext primary = nullptr;
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&primary, 1), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<void*>(primary), context);
  CU(cuDevicePrimaryCtxRelease_v2)(1);
  CU(cuDevicePrimaryCtxReset_v2)(1);
}

}  // namespace
}  // namespace uvmsim::test
