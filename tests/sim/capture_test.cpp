// Stream capture through the runtime interface: which work enters a graph, and each rule's error.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <thread>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

#include "stream_work_test.hpp"

namespace uvmsim::test {
namespace {

class CaptureTest : public StreamWorkTest {
 protected:
  void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    ASSERT_EQ(RT(cudaStreamBeginCapture)(stream, mode), cudaSuccess);
  }

  // Ends the capture and returns its error. There is a graph if and only if there is no error.
  cudaError_t end(cudaStream_t stream) {
    cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(this);
    const cudaError_t error = RT(cudaStreamEndCapture)(stream, &graph);
    if (error == cudaSuccess) {
      EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
    } else {
      EXPECT_EQ(graph, nullptr);
    }
    return error;
  }

  static cudaStreamCaptureStatus status(cudaStream_t stream) {
    cudaStreamCaptureStatus found{};
    EXPECT_EQ(RT(cudaStreamIsCapturing)(stream, &found), cudaSuccess);
    return found;
  }

  cudaError_t fill(int value, cudaStream_t stream) {
    return RT(cudaMemsetAsync)(memory_, value, kBytes, stream);
  }

  // `call` returns `error` and invalidates the capture on stream_.
  template <class Call>
  void expect_invalidates(cudaError_t error, Call call) {
    begin(stream_);
    ASSERT_EQ(fill(1, stream_), cudaSuccess);
    EXPECT_EQ(call(), error);
    EXPECT_EQ(status(stream_), cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(fill(1, stream_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(RT(cudaStreamQuery)(stream_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end(stream_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(status(stream_), cudaStreamCaptureStatusNone);
    EXPECT_EQ(fill(1, stream_), cudaSuccess) << "the stream is usable afterwards";
  }
};

// ---- the effects of a capture

TEST_F(CaptureTest, CapturedWorkDoesNotTakeEffect) {
  begin(stream_);
  ASSERT_EQ(fill(7, stream_), cudaSuccess);
  ASSERT_EQ(end(stream_), cudaSuccess);
  EXPECT_EQ(byte(), 0);
}

TEST_F(CaptureTest, TheStateAndItsIdAreReportedWhileItLasts) {
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusNone);
  begin(stream_);
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusActive);
  EXPECT_EQ(status(other_), cudaStreamCaptureStatusNone);
  cudaStreamCaptureStatus found{};
  unsigned long long first_id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;
  std::size_t count = 99;
  auto* info = RT(cudaStreamGetCaptureInfo);
  ASSERT_EQ(info(stream_, &found, &first_id, &graph, &dependencies, nullptr, &count), cudaSuccess);
  EXPECT_EQ(found, cudaStreamCaptureStatusActive);
  EXPECT_NE(first_id, 0U);
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(count, 0U);
  ASSERT_EQ(fill(1, stream_), cudaSuccess);
  ASSERT_EQ(info(stream_, &found, nullptr, nullptr, &dependencies, nullptr, &count), cudaSuccess);
  ASSERT_EQ(count, 1U);
  cudaGraphNodeType type{};
  ASSERT_EQ(RT(cudaGraphNodeGetType)(dependencies[0], &type), cudaSuccess);
  EXPECT_EQ(type, cudaGraphNodeTypeMemset);
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaErrorInvalidValue) << "the capture's own";
  ASSERT_EQ(end(stream_), cudaSuccess);

  begin(stream_);
  unsigned long long second_id = 0;
  ASSERT_EQ(info(stream_, &found, &second_id, nullptr, nullptr, nullptr, nullptr), cudaSuccess);
  EXPECT_NE(second_id, first_id);
  ASSERT_EQ(end(stream_), cudaSuccess);
  ASSERT_EQ(info(stream_, &found, &second_id, &graph, &dependencies, nullptr, &count), cudaSuccess);
  EXPECT_EQ(found, cudaStreamCaptureStatusNone);
  EXPECT_EQ(second_id, 0U);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(count, 0U);
}

TEST_F(CaptureTest, BeginAndEndHaveTheirConditions) {
  auto* begin_capture = RT(cudaStreamBeginCapture);
  EXPECT_EQ(begin_capture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(begin_capture(cudaStreamLegacy, cudaStreamCaptureModeGlobal),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(begin_capture(stream_, static_cast<cudaStreamCaptureMode>(3)), cudaErrorInvalidValue);
  EXPECT_EQ(end(stream_), cudaErrorIllegalState) << "not capturing";
  begin(stream_);
  EXPECT_EQ(begin_capture(stream_, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  EXPECT_EQ(end(stream_), cudaSuccess);
}

TEST_F(CaptureTest, ThePerThreadDefaultStreamCanBeCaptured) {
  begin(cudaStreamPerThread);
  ASSERT_EQ(fill(3, cudaStreamPerThread), cudaSuccess);
  EXPECT_EQ(end(cudaStreamPerThread), cudaSuccess);
  EXPECT_EQ(byte(), 0);
}

// ---- forks and joins

TEST_F(CaptureTest, AnEventForksAndJoins) {
  begin(stream_);
  ASSERT_EQ(fill(1, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamWaitEvent)(other_, event_, 0), cudaSuccess);
  EXPECT_EQ(status(other_), cudaStreamCaptureStatusActive);
  ASSERT_EQ(fill(2, other_), cudaSuccess);
  ASSERT_EQ(RT(cudaEventRecord)(event_, other_), cudaSuccess);
  ASSERT_EQ(fill(3, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamWaitEvent)(stream_, event_, 0), cudaSuccess);
  ASSERT_EQ(fill(4, stream_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(RT(cudaStreamEndCapture)(stream_, &graph), cudaSuccess);
  EXPECT_EQ(status(other_), cudaStreamCaptureStatusNone);

  std::vector<cudaGraphNode_t> nodes(4);
  std::size_t count = nodes.size();
  ASSERT_EQ(RT(cudaGraphGetNodes)(graph, nodes.data(), &count), cudaSuccess);
  ASSERT_EQ(count, 4U);
  const std::vector<std::vector<cudaGraphNode_t>> expected{
      {}, {nodes[0]}, {nodes[0]}, {nodes[2], nodes[1]}};
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<cudaGraphNode_t> dependencies(4);
    count = dependencies.size();
    ASSERT_EQ(RT(cudaGraphNodeGetDependencies)(nodes[i], dependencies.data(), nullptr, &count),
              cudaSuccess);
    dependencies.resize(count);
    EXPECT_EQ(dependencies, expected[i]) << i;
  }
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
}

TEST_F(CaptureTest, UnjoinedWorkFailsTheCapture) {
  begin(stream_);
  ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamWaitEvent)(other_, event_, 0), cudaSuccess);
  ASSERT_EQ(fill(2, other_), cudaSuccess);
  EXPECT_EQ(end(other_), cudaErrorStreamCaptureUnmatched) << "it began on another stream";
  EXPECT_EQ(end(stream_), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(status(other_), cudaStreamCaptureStatusNone);
}

TEST_F(CaptureTest, AForkWithoutWorkNeedsNoJoin) {
  begin(stream_);
  ASSERT_EQ(fill(1, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamWaitEvent)(other_, event_, 0), cudaSuccess);
  EXPECT_EQ(end(stream_), cudaSuccess);
}

TEST_F(CaptureTest, CapturesAreNotMerged) {
  begin(stream_);
  begin(other_);
  ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
  EXPECT_EQ(RT(cudaStreamWaitEvent)(other_, event_, 0), cudaErrorStreamCaptureMerge);
  EXPECT_EQ(end(other_), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(stream_), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureTest, WorkOutsideIsNoDependency) {
  ASSERT_EQ(RT(cudaEventRecord)(event_, other_), cudaSuccess);
  expect_invalidates(cudaErrorStreamCaptureIsolation,
                     [&] { return RT(cudaStreamWaitEvent)(stream_, event_, 0); });
}

TEST_F(CaptureTest, AnEventThatWasNeverRecordedIsNoDependency) {
  begin(stream_);
  EXPECT_EQ(RT(cudaStreamWaitEvent)(stream_, event_, 0), cudaSuccess);
  EXPECT_EQ(end(stream_), cudaSuccess);
}

TEST_F(CaptureTest, DependenciesCanBeAddedAndReplaced) {
  auto* update = RT(cudaStreamUpdateCaptureDependencies);
  EXPECT_EQ(update(stream_, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies),
            cudaErrorIllegalState);
  begin(stream_);
  ASSERT_EQ(fill(1, stream_), cudaSuccess);
  cudaStreamCaptureStatus found{};
  const cudaGraphNode_t* tips = nullptr;
  std::size_t count = 0;
  auto* info = RT(cudaStreamGetCaptureInfo);
  ASSERT_EQ(info(stream_, &found, nullptr, nullptr, &tips, nullptr, &count), cudaSuccess);
  cudaGraphNode_t first = tips[0];
  ASSERT_EQ(fill(2, stream_), cudaSuccess);
  ASSERT_EQ(update(stream_, &first, nullptr, 1, cudaStreamAddCaptureDependencies), cudaSuccess);
  ASSERT_EQ(info(stream_, &found, nullptr, nullptr, &tips, nullptr, &count), cudaSuccess);
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(tips[1], first);
  ASSERT_EQ(update(stream_, &first, nullptr, 1, cudaStreamSetCaptureDependencies), cudaSuccess);
  ASSERT_EQ(info(stream_, &found, nullptr, nullptr, &tips, nullptr, &count), cudaSuccess);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(tips[0], first);
  auto no_node = reinterpret_cast<cudaGraphNode_t>(this);
  EXPECT_EQ(update(stream_, &no_node, nullptr, 1, cudaStreamSetCaptureDependencies),
            cudaErrorInvalidValue);
  EXPECT_EQ(update(stream_, &first, nullptr, 1, 2), cudaErrorInvalidValue);
  EXPECT_EQ(end(stream_), cudaSuccess) << "what is taken away needs no join";
}

// ---- forbidden calls

TEST_F(CaptureTest, ACapturingStreamIsNeitherWaitedForNorQueried) {
  expect_invalidates(cudaErrorStreamCaptureUnsupported,
                     [&] { return RT(cudaStreamSynchronize)(stream_); });
  expect_invalidates(cudaErrorStreamCaptureUnsupported,
                     [&] { return RT(cudaStreamQuery)(stream_); });
  expect_invalidates(cudaErrorStreamCaptureUnsupported,
                     [&] { return RT(cudaDeviceSynchronize)(); });
}

TEST_F(CaptureTest, ACapturedEventIsNeitherWaitedForNorQueried) {
  expect_invalidates(cudaErrorCapturedEvent, [&] {
    EXPECT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
    return RT(cudaEventQuery)(event_);
  });
  EXPECT_EQ(RT(cudaEventQuery)(event_), cudaErrorCapturedEvent) << "also after the capture";
  EXPECT_EQ(RT(cudaStreamWaitEvent)(other_, event_, 0), cudaErrorCapturedEvent);
  expect_invalidates(cudaErrorCapturedEvent, [&] {
    EXPECT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
    return RT(cudaEventSynchronize)(event_);
  });
  ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
  EXPECT_EQ(RT(cudaEventSynchronize)(event_), cudaSuccess) << "recorded again outside";
}

TEST_F(CaptureTest, CallsThatACaptureWouldNotSeeAreForbidden) {
  void* out = nullptr;
  const std::vector<unsigned char> host(kBytes);
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] { return RT(cudaMalloc)(&out, 16); });
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] { return RT(cudaFree)(memory_); });
  expect_invalidates(cudaErrorStreamCaptureUnsupported,
                     [&] { return RT(cudaMallocManaged)(&out, 16, cudaMemAttachGlobal); });
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] {
    return StandIn::runtime().function<cudaError_t(void**, size_t)>("cudaMallocHost")(&out, 16);
  });
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] {
    return RT(cudaMemcpy)(memory_, host.data(), 16, cudaMemcpyHostToDevice);
  });
  expect_invalidates(cudaErrorStreamCaptureUnsupported,
                     [&] { return RT(cudaStreamSynchronize)(other_); });
  ASSERT_EQ(RT(cudaEventRecord)(event_, other_), cudaSuccess);
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] { return RT(cudaEventQuery)(event_); });
}

TEST_F(CaptureTest, WorkThatGraphsDoNotHoldIsForbidden) {
  void* managed = nullptr;
  ASSERT_EQ(RT(cudaMallocManaged)(&managed, kBytes, cudaMemAttachGlobal), cudaSuccess);
  const cudaMemLocation device{cudaMemLocationTypeDevice, {0}};
  expect_invalidates(cudaErrorStreamCaptureUnsupported,
                     [&] { return RT(cudaMemPrefetchAsync)(managed, kBytes, device, 0, stream_); });
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] {
    size_t bytes = kBytes;
    return RT(cudaMemDiscardBatchAsync)(&managed, &bytes, 1, 0, stream_);
  });
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] {
    return RT(cudaStreamAttachMemAsync)(stream_, managed, 0, cudaMemAttachGlobal);
  });
  expect_invalidates(cudaErrorStreamCaptureUnsupported, [&] {
    return RT(cudaStreamAddCallback)(
        stream_, [](cudaStream_t, cudaError_t, void*) { ADD_FAILURE(); }, nullptr, 0);
  });
  EXPECT_EQ(RT(cudaFree)(managed), cudaSuccess);
}

TEST_F(CaptureTest, AllocationInTheOrderOfACapturingStreamIsNotSupportedAndCounted) {
  begin(stream_);
  void* out = nullptr;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RT(cudaMallocAsync)(&out, 16, stream_), cudaErrorNotSupported);
  ::testing::internal::GetCapturedStderr();
  uvmsim_counters counters{};
  uvmsim_get_counters(&counters);
  EXPECT_EQ(counters.unimplemented_calls, 1U);
  EXPECT_EQ(end(stream_), cudaSuccess);
}

TEST_F(CaptureTest, TheLegacyStreamIsUnusableBesideACapturingBlockingStream) {
  cudaStream_t blocking = make_stream(0);
  const std::vector<unsigned char> host(kBytes);
  begin(blocking, cudaStreamCaptureModeRelaxed);
  cudaStreamCaptureStatus found{};
  EXPECT_EQ(RT(cudaStreamIsCapturing)(nullptr, &found), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(status(blocking), cudaStreamCaptureStatusActive) << "the question does no harm";
  EXPECT_EQ(fill(1, nullptr), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(end(blocking), cudaErrorStreamCaptureInvalidated);
  begin(blocking, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(RT(cudaMemcpy)(memory_, host.data(), 16, cudaMemcpyHostToDevice),
            cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(end(blocking), cudaErrorStreamCaptureInvalidated);
  begin(stream_);
  EXPECT_EQ(fill(1, nullptr), cudaSuccess) << "no part in it";
  EXPECT_EQ(end(stream_), cudaSuccess);
}

TEST_F(CaptureTest, TheLegacyStreamDoesNotJoin) {
  expect_invalidates(cudaErrorStreamCaptureImplicit, [&] {
    EXPECT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
    return RT(cudaStreamWaitEvent)(nullptr, event_, 0);
  });
}

// ---- modes and threads

TEST_F(CaptureTest, ModesDecideWhoMayAllocateMeanwhile) {
  struct Row {
    cudaStreamCaptureMode capture;
    cudaStreamCaptureMode thread;
    cudaError_t same_thread;
    cudaError_t other_thread;
  };
  constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
  constexpr auto kThreadLocal = cudaStreamCaptureModeThreadLocal;
  constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;
  constexpr auto kRefused = cudaErrorStreamCaptureUnsupported;
  for (const Row& row : {Row{kGlobal, kGlobal, kRefused, kRefused},
                         Row{kGlobal, kThreadLocal, kRefused, cudaSuccess},
                         Row{kGlobal, kRelaxed, cudaSuccess, cudaSuccess},
                         Row{kThreadLocal, kGlobal, kRefused, cudaSuccess},
                         Row{kThreadLocal, kRelaxed, cudaSuccess, cudaSuccess},
                         Row{kRelaxed, kGlobal, cudaSuccess, cudaSuccess}}) {
    const auto allocate = [&] {
      cudaStreamCaptureMode mode = row.thread;
      EXPECT_EQ(RT(cudaThreadExchangeStreamCaptureMode)(&mode), cudaSuccess);
      EXPECT_EQ(mode, kGlobal) << "what a thread begins with";
      void* out = nullptr;
      const cudaError_t error = RT(cudaMalloc)(&out, 16);
      if (error == cudaSuccess) {
        EXPECT_EQ(RT(cudaFree)(out), cudaSuccess);
      }
      EXPECT_EQ(RT(cudaThreadExchangeStreamCaptureMode)(&mode), cudaSuccess);
      EXPECT_EQ(mode, row.thread);
      return error;
    };
    const auto ending = [](cudaError_t error) {
      return error == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
    };
    begin(stream_, row.capture);
    EXPECT_EQ(allocate(), row.same_thread) << row.capture << " " << row.thread;
    EXPECT_EQ(end(stream_), ending(row.same_thread));
    begin(stream_, row.capture);
    cudaError_t error{};
    std::thread([&] { error = allocate(); }).join();
    EXPECT_EQ(error, row.other_thread) << row.capture << " " << row.thread;
    EXPECT_EQ(end(stream_), ending(row.other_thread));
  }
}

TEST_F(CaptureTest, AnUnknownThreadModeIsRefused) {
  auto mode = static_cast<cudaStreamCaptureMode>(7);
  EXPECT_EQ(RT(cudaThreadExchangeStreamCaptureMode)(&mode), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaThreadExchangeStreamCaptureMode)(nullptr), cudaErrorInvalidValue);
}

TEST_F(CaptureTest, OnlyARelaxedCaptureMayEndOnAnotherThread) {
  begin(stream_, cudaStreamCaptureModeThreadLocal);
  cudaError_t error{};
  std::thread([&] { error = end(stream_); }).join();
  EXPECT_EQ(error, cudaErrorStreamCaptureWrongThread);
  EXPECT_EQ(end(stream_), cudaSuccess);
  begin(stream_, cudaStreamCaptureModeRelaxed);
  std::thread([&] { error = end(stream_); }).join();
  EXPECT_EQ(error, cudaSuccess);
}

TEST_F(CaptureTest, OtherThreadsMayAddWork) {
  begin(stream_);
  cudaError_t error{};
  std::thread([&] { error = fill(1, stream_); }).join();
  EXPECT_EQ(error, cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(RT(cudaStreamEndCapture)(stream_, &graph), cudaSuccess);
  std::size_t count = 0;
  ASSERT_EQ(RT(cudaGraphGetNodes)(graph, nullptr, &count), cudaSuccess);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
}

TEST_F(CaptureTest, DestroyingTheStreamEndsItsCapture) {
  cudaStream_t gone = make_stream(cudaStreamNonBlocking);
  begin(gone);
  ASSERT_EQ(RT(cudaEventRecord)(event_, gone), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamWaitEvent)(other_, event_, 0), cudaSuccess);
  destroy_stream(gone);
  EXPECT_EQ(status(other_), cudaStreamCaptureStatusNone);
  EXPECT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess);
}

TEST_F(CaptureTest, DestroyingAForkedStreamInvalidates) {
  cudaStream_t gone = make_stream(cudaStreamNonBlocking);
  begin(stream_);
  ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamWaitEvent)(gone, event_, 0), cudaSuccess);
  destroy_stream(gone);
  EXPECT_EQ(end(stream_), cudaErrorStreamCaptureInvalidated);
}

// ---- the driver's functions for captures

TEST_F(CaptureTest, TheDriverAnswersForTheSameCapture) {
  CUgraph graph = nullptr;
  auto* begin_capture = StandIn::driver().function<CUresult(CUstream, CUstreamCaptureMode)>(
      "cuStreamBeginCapture_v2");
  ASSERT_EQ(begin_capture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusActive);
  CUstreamCaptureStatus found{};
  ASSERT_EQ(CU(cuStreamIsCapturing)(stream_, &found), CUDA_SUCCESS);
  EXPECT_EQ(found, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  cuuint64_t first = 0;
  cuuint64_t second = 0;
  cuuint64_t third = 0;
  CUgraph own = nullptr;
  const CUgraphNode* tips = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  ASSERT_EQ((StandIn::driver().function<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*)>(
                "cuStreamGetCaptureInfo")(stream_, &found, &first)),
            CUDA_SUCCESS);
  ASSERT_EQ((StandIn::driver()
                 .function<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                    const CUgraphNode**, size_t*)>("cuStreamGetCaptureInfo_v2")(
                     stream_, &found, &second, &own, &tips, &count)),
            CUDA_SUCCESS);
  ASSERT_EQ(
      (StandIn::driver()
           .function<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                              const CUgraphNode**, const CUgraphEdgeData**, size_t*)>(
               "cuStreamGetCaptureInfo_v3")(stream_, &found, &third, &own, &tips, &edges, &count)),
      CUDA_SUCCESS);
  EXPECT_NE(first, 0U);
  EXPECT_EQ(second, first);
  EXPECT_EQ(third, first);
  EXPECT_EQ(CU(cuMemAlloc_v2)(nullptr, 16), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr out = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&out, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(CU(cuStreamSynchronize)(stream_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(CU(cuStreamEndCapture)(stream_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(CU(cuStreamEndCapture)(stream_, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

}  // namespace
}  // namespace uvmsim::test
