// The CUDA runtime during a program's capture, on a simulated or a real driver. Calls for the
// runtime's own memory and events must not invalidate the capture.
#include <cuda.h>

#include <thread>

#include "runtime/cuda/vendor.hpp"

#include "tests/conformance/cuda_expectations.hpp"
#include "tests/conformance/runtimes.hpp"

namespace uvm {
namespace {

class CudaCapture : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime = testing::open("cuda");
    driver = cuda::load_driver().handle;
    ASSERT_NE(driver, nullptr);
    ASSERT_TRUE(runtime->create_stream(0, &captured).ok());
    ASSERT_TRUE(runtime->create_stream(0, &own).ok());
    ASSERT_TRUE(runtime->create_event(0, &event).ok());
    ASSERT_TRUE(runtime->record_event(0, event, own).ok());
    ASSERT_TRUE(runtime->allocate_managed(0, 4096, &earlier).ok());
    // Sets the context of the calling thread, in which the program captures.
    CUcontext context = nullptr;
    ASSERT_EQ(find<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(find<CUresult(CUcontext)>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
  }

  void TearDown() override {
    EXPECT_TRUE(runtime->destroy_event(0, event).ok());
    EXPECT_TRUE(runtime->destroy_stream(0, own).ok());
    EXPECT_TRUE(runtime->destroy_stream(0, captured).ok());
    EXPECT_EQ(find<CUresult(CUcontext)>("cuCtxSetCurrent")(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(find<CUresult(CUdevice)>("cuDevicePrimaryCtxRelease_v2")(0), CUDA_SUCCESS);
  }

  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(driver, name));
  }

  CUresult begin() {
    is_capturing = true;
    return find<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
        static_cast<CUstream>(captured), CU_STREAM_CAPTURE_MODE_GLOBAL);
  }

  CUresult end() {
    CUgraph graph = nullptr;
    const CUresult result = find<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(
        static_cast<CUstream>(captured), &graph);
    if (graph != nullptr) {
      EXPECT_EQ(find<CUresult(CUgraph)>("cuGraphDestroy")(graph), CUDA_SUCCESS);
    }
    return result;
  }

  // Makes every call that the driver may refuse during a capture.
  void use_runtime() {
    void* address = nullptr;
    RuntimeStatus status = runtime->allocate_managed(0, 4096, &address);
    if (is_capturing && !testing::allocates_beside_captures()) {
      EXPECT_EQ(status.error, RuntimeError::kCapture) << status.text();
    } else {
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_TRUE(runtime->free_managed(0, address).ok());
    }
    status = runtime->free_managed(0, earlier);
    EXPECT_TRUE(status.ok()) << status.text();
    status = runtime->query_event(0, event);
    EXPECT_TRUE(status.ok() || status.error == RuntimeError::kNotReady) << status.text();
    status = runtime->synchronize_event(0, event);
    EXPECT_TRUE(status.ok()) << status.text();
    status = runtime->synchronize_stream(0, own);
    EXPECT_TRUE(status.ok()) << status.text();
  }

  std::unique_ptr<DeviceRuntime> runtime;
  void* driver = nullptr;
  void* earlier = nullptr;  // allocated before a capture begins
  bool is_capturing = false;
  StreamHandle captured = nullptr;
  StreamHandle own = nullptr;
  EventHandle event = nullptr;
};

TEST_F(CudaCapture, TheRuntimeDoesNotDisturbACaptureOfItsThread) {
  ASSERT_EQ(begin(), CUDA_SUCCESS);
  bool capturing = false;
  EXPECT_TRUE(runtime->is_capturing(0, captured, &capturing).ok());
  EXPECT_TRUE(capturing);
  EXPECT_TRUE(runtime->is_capturing(0, own, &capturing).ok());
  EXPECT_FALSE(capturing);
  use_runtime();
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

TEST_F(CudaCapture, TheRuntimeDoesNotDisturbACaptureOfAnotherThread) {
  ASSERT_EQ(begin(), CUDA_SUCCESS);
  std::thread([this] { use_runtime(); }).join();
  EXPECT_EQ(end(), CUDA_SUCCESS);
}

TEST_F(CudaCapture, TheThreadKeepsItsOwnMode) {
  use_runtime();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  auto* exchange = find<CUresult(CUstreamCaptureMode*)>("cuThreadExchangeStreamCaptureMode");
  ASSERT_EQ(exchange(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(exchange(&mode), CUDA_SUCCESS);
}

TEST_F(CudaCapture, TheCapturedStreamIsNotWaitedFor) {
  ASSERT_EQ(begin(), CUDA_SUCCESS);
  EXPECT_EQ(runtime->synchronize_stream(0, captured).error, RuntimeError::kCapture);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

}  // namespace
}  // namespace uvm
