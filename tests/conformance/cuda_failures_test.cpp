// How the CUDA runtime translates a driver's errors. A real driver does not fail on demand, so
// these tests are skipped there.
#include <cuda.h>

#include <thread>

#include "runtime/cuda/vendor.hpp"

#include "tests/conformance/runtimes.hpp"

namespace uvm {
namespace {

using FailCall = int(const char* name, std::uint64_t nth, int error);

class CudaFailures : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::on_real_device()) GTEST_SKIP() << "a real driver does not fail on demand";
    runtime = testing::open("cuda");
    fail_call = reinterpret_cast<FailCall*>(dlsym(testing::simulator(), "uvmsim_fail_call"));
    ASSERT_NE(fail_call, nullptr);
  }

  // Makes the next call of `name` fail.
  void fail(const char* name, CUresult result) { ASSERT_EQ(fail_call(name, 1, result), 0); }

  template <class Function>
  static Function* driver_function(const char* name) {
    return reinterpret_cast<Function*>(dlsym(cuda::load_driver().handle, name));
  }
  // Sets device 0 in a new thread, which has no context before. Returns false if `device` is 0.
  static bool choose_another_device(int device) {
    if (device == 0) return false;
    CUcontext context = nullptr;
    EXPECT_EQ(
        driver_function<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0),
        CUDA_SUCCESS);
    EXPECT_EQ(driver_function<CUresult(CUcontext)>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
    return true;
  }

  std::unique_ptr<DeviceRuntime> runtime;
  FailCall* fail_call = nullptr;
};

TEST_F(CudaFailures, EachErrorHasItsKindAndKeepsItsNameAndNumber) {
  const std::pair<CUresult, RuntimeError> kKinds[] = {
      {CUDA_ERROR_NOT_READY, RuntimeError::kNotReady},
      {CUDA_ERROR_OUT_OF_MEMORY, RuntimeError::kOutOfMemory},
      {CUDA_ERROR_NOT_SUPPORTED, RuntimeError::kNotSupported},
      {CUDA_ERROR_INVALID_VALUE, RuntimeError::kInvalidValue},
      {CUDA_ERROR_NO_DEVICE, RuntimeError::kNoDevice},
      {CUDA_ERROR_INVALID_DEVICE, RuntimeError::kNoDevice},
      {CUDA_ERROR_DEINITIALIZED, RuntimeError::kNotUsable},
      {CUDA_ERROR_NOT_INITIALIZED, RuntimeError::kNotUsable},
      {CUDA_ERROR_CONTEXT_IS_DESTROYED, RuntimeError::kNotUsable},
      {CUDA_ERROR_INVALID_CONTEXT, RuntimeError::kNotUsable},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, RuntimeError::kCapture},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, RuntimeError::kCapture},
      {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, RuntimeError::kCapture},
      {CUDA_ERROR_CAPTURED_EVENT, RuntimeError::kCapture},
      {CUDA_ERROR_ILLEGAL_ADDRESS, RuntimeError::kOther},
  };
  for (auto [result, kind] : kKinds) {
    fail("cuMemAllocManaged", result);
    void* address = nullptr;
    RuntimeStatus status = runtime->allocate_managed(0, 4096, &address);
    EXPECT_EQ(status.error, kind) << status.text();
    EXPECT_EQ(status.native_code, static_cast<int>(result));
    EXPECT_EQ(status.call, "cuMemAllocManaged");
  }
}

TEST_F(CudaFailures, TheNameIsTheDrivers) {
  fail("cuMemAllocManaged", CUDA_ERROR_ILLEGAL_ADDRESS);
  void* address = nullptr;
  EXPECT_EQ(runtime->allocate_managed(0, 4096, &address).text(),
            "cuMemAllocManaged: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
}

TEST_F(CudaFailures, ADeviceThatCannotBeDescribedSaysWhichQuestionFailed) {
  DeviceDescription description;
  fail("cuDeviceGetName", CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(runtime->describe(0, &description).call, "cuDeviceGetName");
  fail("cuDeviceTotalMem_v2", CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(runtime->describe(0, &description).call, "cuDeviceTotalMem");
  EXPECT_EQ(runtime->describe(99, &description).error, RuntimeError::kNoDevice);
}

TEST_F(CudaFailures, APointerQuestionThatFailsIsAnErrorAndNotAForeignPointer) {
  PointerAttributes attributes;
  fail("cuPointerGetAttribute", CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(runtime->pointer_attributes(&attributes, &attributes).error, RuntimeError::kNotUsable);
}

TEST_F(CudaFailures, WithoutAContextNothingIsCalled) {
  const int device = runtime->device_count() - 1;  // a thread of HIP is on device 0 from the start
  fail("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY);
  void* address = nullptr;
  EXPECT_EQ(runtime->allocate_managed(device, 4096, &address).call, "cuDevicePrimaryCtxRetain");
  ASSERT_TRUE(runtime->allocate_managed(device, 4096, &address).ok()) << "it is tried again";
  std::thread([&] {
    const char* change = choose_another_device(device) ? "cuCtxSetCurrent" : "cuCtxPushCurrent_v2";
    fail("cuCtxGetCurrent", CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(runtime->free_managed(device, address).call, "cuCtxGetCurrent");
    fail(change, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(runtime->free_managed(device, address).call, change);
    EXPECT_TRUE(runtime->free_managed(device, address).ok());
  }).join();
}

TEST_F(CudaFailures, MemoryThatWasAllocatedIsKeptWhereTheThreadCannotBeRestored) {
  const int device = runtime->device_count() - 1;  // a thread of HIP is on device 0 from the start
  for (const bool is_mode : {false, true}) {
    std::thread([&, is_mode] {
      const bool is_set = choose_another_device(device);
      const char* change = is_set ? "cuCtxSetCurrent" : "cuCtxPopCurrent_v2";
      const char* call = is_mode ? "cuThreadExchangeStreamCaptureMode" : change;
      const std::uint64_t count = is_mode || is_set ? 2 : 1;
      ASSERT_EQ(fail_call(call, count, CUDA_ERROR_INVALID_VALUE), 0);
      void* address = nullptr;
      EXPECT_EQ(runtime->allocate_managed(device, 4096, &address).text(), "ok") << call;
      ASSERT_NE(address, nullptr);
      EXPECT_EQ(fail_call(call, 0, 0), 0);
      EXPECT_EQ(runtime->free_managed(device, address).text(), "ok") << call;
    }).join();
  }
}

TEST_F(CudaFailures, ADriverThatCannotStartSaysWhy) {
  fail("cuInit", CUDA_ERROR_UNKNOWN);
  RuntimeChoice choice = open_runtime("cuda");
  EXPECT_EQ(choice.runtime, nullptr);
  EXPECT_EQ(choice.reason, "cuda: cuInit failed: CUDA_ERROR_UNKNOWN (999)");
}

TEST_F(CudaFailures, ADriverWithoutDevicesSaysSo) {
  fail("cuInit", CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(open_runtime("cuda").reason, "cuda: no CUDA device is visible");
}

TEST_F(CudaFailures, ACallLeavesTheThreadOnItsDevice) {
  const int device = runtime->device_count() - 1;
  auto* current = driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent");
  CUcontext before = nullptr;
  ASSERT_EQ(current(&before), CUDA_SUCCESS);
  void* address = nullptr;
  ASSERT_TRUE(runtime->allocate_managed(device, 4096, &address).ok());
  ASSERT_TRUE(runtime->free_managed(device, address).ok());
  fail("cuMemGetInfo_v2", CUDA_ERROR_INVALID_VALUE);
  MemoryFigures figures;
  EXPECT_FALSE(runtime->memory_figures(device, &figures).ok());
  CUcontext after = nullptr;
  ASSERT_EQ(current(&after), CUDA_SUCCESS);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace uvm
