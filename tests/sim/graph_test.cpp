// Graphs through the runtime interface, and the kernels that the control interface records in them.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>

#include "stream_work_test.hpp"

namespace uvmsim::test {
namespace {

class GraphTest : public StreamWorkTest {
 protected:
  void TearDown() override {
    RT(cudaGetLastError)();
    for (cudaGraphExec_t exec : execs_) EXPECT_EQ(RT(cudaGraphExecDestroy)(exec), cudaSuccess);
    StreamWorkTest::TearDown();
  }

  template <class Work>
  cudaGraph_t capture(Work work) {
    EXPECT_EQ(RT(cudaStreamBeginCapture)(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(RT(cudaStreamEndCapture)(stream_, &graph), cudaSuccess);
    return graph;
  }

  cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(RT(cudaGraphInstantiateWithFlags)(&exec, graph, 0), cudaSuccess);
    execs_.push_back(exec);
    return exec;
  }

  // Captures `work`, instantiates the graph and destroys the graph itself.
  template <class Work>
  cudaGraphExec_t record(Work work) {
    cudaGraph_t graph = capture(work);
    cudaGraphExec_t exec = instantiate(graph);
    EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
    return exec;
  }

  void destroy(cudaGraphExec_t exec) {
    EXPECT_EQ(RT(cudaGraphExecDestroy)(exec), cudaSuccess);
    std::erase(execs_, exec);
  }

  void launch(cudaGraphExec_t exec) { ASSERT_EQ(RT(cudaGraphLaunch)(exec, stream_), cudaSuccess); }

 private:
  std::vector<cudaGraphExec_t> execs_;
};

TEST_F(GraphTest, EachLaunchRunsTheCopiesAndFillsAgain) {
  std::vector<unsigned char> from(16, 5);
  std::vector<unsigned char> to(16, 0);
  auto* memory = static_cast<unsigned char*>(memory_);
  cudaGraphExec_t exec = record([&] {
    ASSERT_EQ(RT(cudaMemcpyAsync)(memory, from.data(), 16, cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    ASSERT_EQ(RT(cudaMemsetAsync)(memory + 8, 9, 8, stream_), cudaSuccess);
    ASSERT_EQ(RT(cudaMemcpyAsync)(to.data(), memory, 16, cudaMemcpyDeviceToHost, stream_),
              cudaSuccess);
  });
  EXPECT_EQ(to[0], 0);
  EXPECT_EQ(byte(), 0);
  launch(exec);
  EXPECT_EQ(to[0], 5);
  EXPECT_EQ(to[8], 9);
  from.assign(16, 6);
  launch(exec);
  EXPECT_EQ(to[0], 6) << "the source is read at each launch";
  EXPECT_EQ(byte(8), 9);
  uvmsim_counters counters{};
  uvmsim_get_counters(&counters);
  EXPECT_EQ(counters.graph_launches, 2U);
}

TEST_F(GraphTest, HostFunctionsRunAtEachLaunch) {
  int calls = 0;
  cudaGraphExec_t exec = record([&] {
    ASSERT_EQ(RT(cudaLaunchHostFunc)(
                  stream_, [](void* out) { ++*static_cast<int*>(out); }, &calls),
              cudaSuccess);
  });
  EXPECT_EQ(calls, 0);
  launch(exec);
  launch(exec);
  EXPECT_EQ(calls, 2);
}

TEST_F(GraphTest, AnExecutableGraphOutlivesItsGraphAndIsLaunchedOnAnyStream) {
  cudaGraphExec_t exec =
      record([&] { ASSERT_EQ(RT(cudaMemsetAsync)(memory_, 3, 1, stream_), cudaSuccess); });
  ASSERT_EQ(RT(cudaGraphUpload)(exec, other_), cudaSuccess);
  ASSERT_EQ(RT(cudaGraphLaunch)(exec, nullptr), cudaSuccess);
  EXPECT_EQ(byte(), 3);
  unsigned long long flags = 99;
  EXPECT_EQ(RT(cudaGraphExecGetFlags)(exec, &flags), cudaSuccess);
  EXPECT_EQ(flags, 0U);
}

TEST_F(GraphTest, HandlesThatAreNoneAreInvalid) {
  auto* no_graph = reinterpret_cast<cudaGraph_t>(this);
  auto* no_exec = reinterpret_cast<cudaGraphExec_t>(this);
  auto* no_node = reinterpret_cast<cudaGraphNode_t>(this);
  std::size_t count = 0;
  cudaGraphExec_t exec = nullptr;
  cudaGraphNodeType type{};
  EXPECT_EQ(RT(cudaGraphDestroy)(no_graph), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGraphGetNodes)(no_graph, nullptr, &count), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGraphInstantiate)(&exec, no_graph, 0), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGraphExecDestroy)(no_exec), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGraphLaunch)(no_exec, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGraphNodeGetType)(no_node, &type), cudaErrorInvalidValue);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(RT(cudaGraphCreate)(&graph, 0), cudaSuccess);
  EXPECT_EQ(RT(cudaGraphInstantiate)(&exec, graph, cudaGraphInstantiateFlagDeviceLaunch),
            cudaErrorNotSupported);
  EXPECT_EQ(RT(cudaGraphInstantiate)(&exec, graph, 1 << 10), cudaErrorInvalidValue);
  ASSERT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaErrorInvalidValue) << "twice";
}

TEST_F(GraphTest, NodesAndEdgesAreListed) {
  int calls = 0;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(RT(cudaGraphCreate)(&graph, 0), cudaSuccess);
  cudaGraphNode_t root = nullptr;
  cudaGraphNode_t leaf = nullptr;
  ASSERT_EQ(RT(cudaGraphAddEmptyNode)(&root, graph, nullptr, 0), cudaSuccess);
  const cudaHostNodeParams parameters{[](void* out) { ++*static_cast<int*>(out); }, &calls};
  ASSERT_EQ(RT(cudaGraphAddHostNode)(&leaf, graph, &root, 1, &parameters), cudaSuccess);
  const cudaGraphNode_t twice[] = {root, root};
  cudaGraphNode_t refused = nullptr;
  EXPECT_EQ(RT(cudaGraphAddEmptyNode)(&refused, graph, twice, 2), cudaErrorInvalidValue);

  std::size_t count = 0;
  ASSERT_EQ(RT(cudaGraphGetNodes)(graph, nullptr, &count), cudaSuccess);
  EXPECT_EQ(count, 2U);
  std::vector<cudaGraphNode_t> nodes(3, root);
  count = nodes.size();
  ASSERT_EQ(RT(cudaGraphGetNodes)(graph, nodes.data(), &count), cudaSuccess);
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(nodes, (std::vector<cudaGraphNode_t>{root, leaf, nullptr})) << "the rest is cleared";
  count = 1;
  ASSERT_EQ(RT(cudaGraphGetRootNodes)(graph, nodes.data(), &count), cudaSuccess);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(nodes[0], root);
  cudaGraphNode_t from = nullptr;
  cudaGraphNode_t to = nullptr;
  count = 1;
  ASSERT_EQ(RT(cudaGraphGetEdges)(graph, &from, &to, nullptr, &count), cudaSuccess);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(from, root);
  EXPECT_EQ(to, leaf);
  ASSERT_EQ(RT(cudaGraphNodeGetDependentNodes)(root, &to, nullptr, &count), cudaSuccess);
  EXPECT_EQ(to, leaf);
  cudaGraphNodeType type{};
  ASSERT_EQ(RT(cudaGraphNodeGetType)(leaf, &type), cudaSuccess);
  EXPECT_EQ(type, cudaGraphNodeTypeHost);
  ASSERT_EQ(RT(cudaGraphNodeGetType)(root, &type), cudaSuccess);
  EXPECT_EQ(type, cudaGraphNodeTypeEmpty);

  cudaGraph_t clone = nullptr;
  ASSERT_EQ(RT(cudaGraphClone)(&clone, graph), cudaSuccess);
  ASSERT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
  EXPECT_EQ(RT(cudaGraphNodeGetType)(leaf, &type), cudaErrorInvalidValue) << "went with its graph";
  launch(instantiate(clone));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(RT(cudaGraphDestroy)(clone), cudaSuccess);
}

TEST_F(GraphTest, ANodeOfACloneIsFoundAndDestroyed) {
  cudaGraph_t graph = capture([&] {
    for (int value = 1; value <= 3; ++value)
      ASSERT_EQ(RT(cudaMemsetAsync)(memory_, value, 1, stream_), cudaSuccess);
  });
  std::vector<cudaGraphNode_t> nodes(3);
  std::size_t count = nodes.size();
  ASSERT_EQ(RT(cudaGraphGetNodes)(graph, nodes.data(), &count), cudaSuccess);
  cudaGraph_t clone = nullptr;
  ASSERT_EQ(RT(cudaGraphClone)(&clone, graph), cudaSuccess);
  cudaGraphNode_t last = nullptr;
  ASSERT_EQ(RT(cudaGraphNodeFindInClone)(&last, nodes[2], clone), cudaSuccess);
  EXPECT_NE(last, nodes[2]);
  ASSERT_EQ(RT(cudaGraphDestroyNode)(last), cudaSuccess);
  EXPECT_EQ(RT(cudaGraphDestroyNode)(last), cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGraphNodeFindInClone)(&last, nodes[2], clone), cudaErrorInvalidValue);
  EXPECT_EQ(CU(cuGraphNodeFindInClone)(nullptr, nodes[1], clone), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(RT(cudaGraphGetEdges)(clone, nullptr, nullptr, nullptr, &count), cudaSuccess);
  EXPECT_EQ(count, 1U) << "the edge of the destroyed node is gone";
  launch(instantiate(clone));
  EXPECT_EQ(byte(), 2);
  launch(instantiate(graph));
  EXPECT_EQ(byte(), 3) << "the original graph is complete";
  EXPECT_EQ(RT(cudaGraphDestroy)(clone), cudaSuccess);
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
}

TEST_F(GraphTest, TheKindsOfNodesAreReported) {
  cudaEvent_t external = nullptr;
  ASSERT_EQ(RT(cudaEventCreate)(&external), cudaSuccess);
  cudaGraphExec_t child =
      record([&] { ASSERT_EQ(RT(cudaMemsetAsync)(memory_, 8, 1, stream_), cudaSuccess); });
  auto* spin = StandIn::runtime()
                   .function<void(void**, const char*, char*, const char*, int, uint3*, uint3*,
                                  dim3*, dim3*, int*)>("__cudaRegisterFunction");
  static const char spin_stub = 0;
  spin(nullptr, &spin_stub, nullptr, "_ZN2at4cuda11spin_kernelEl", -1, nullptr, nullptr, nullptr,
       nullptr, nullptr);
  auto* launch_kernel =
      StandIn::runtime()
          .function<cudaError_t(const void*, dim3, dim3, void**, size_t, cudaStream_t)>(
              "cudaLaunchKernel");
  cudaGraph_t graph = capture([&] {
    std::int64_t cycles = 700;
    void* arguments[] = {&cycles};
    ASSERT_EQ(launch_kernel(&spin_stub, dim3(), dim3(), arguments, 0, stream_), cudaSuccess);
    ASSERT_EQ(RT(cudaMemcpyAsync)(memory_, static_cast<char*>(memory_) + 64, 8,
                                  cudaMemcpyDeviceToDevice, stream_),
              cudaSuccess);
    ASSERT_EQ(RT(cudaEventRecordWithFlags)(external, stream_, cudaEventRecordExternal),
              cudaSuccess);
    ASSERT_EQ(RT(cudaStreamWaitEvent)(stream_, external, cudaEventWaitExternal), cudaSuccess);
    ASSERT_EQ(RT(cudaGraphLaunch)(child, stream_), cudaSuccess);
    ASSERT_EQ(
        CU(cuStreamWriteValue32_v2)(stream_, reinterpret_cast<CUdeviceptr>(memory_) + 4, 11, 0),
        CUDA_SUCCESS);
  });
  std::vector<cudaGraphNode_t> nodes(6);
  std::size_t count = nodes.size();
  ASSERT_EQ(RT(cudaGraphGetNodes)(graph, nodes.data(), &count), cudaSuccess);
  ASSERT_EQ(count, 6U);
  std::vector<int> types;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    EXPECT_EQ(RT(cudaGraphNodeGetType)(node, &type), cudaSuccess);
    types.push_back(type);
  }
  EXPECT_EQ(types, (std::vector<int>{cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                                     cudaGraphNodeTypeEventRecord, cudaGraphNodeTypeWaitEvent,
                                     cudaGraphNodeTypeGraph, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP}));
  EXPECT_EQ(RT(cudaEventQuery)(external), cudaSuccess) << "not captured: a node of its own";
  destroy(child);
  const std::uint64_t start = uvmsim_now_ns();
  launch(instantiate(graph));
  EXPECT_EQ(byte(0), 8) << "the child graph's nodes are the graph's own";
  EXPECT_EQ(byte(4), 11);
  ASSERT_EQ(RT(cudaEventSynchronize)(external), cudaSuccess);
  EXPECT_GE(uvmsim_now_ns(), start + 700) << "recorded after the kernel";
  EXPECT_EQ(RT(cudaEventRecordWithFlags)(external, stream_, cudaEventRecordExternal),
            cudaErrorInvalidValue)
      << "outside a capture";
  EXPECT_EQ(RT(cudaStreamWaitEvent)(stream_, external, cudaEventWaitExternal),
            cudaErrorInvalidValue);
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
  EXPECT_EQ(RT(cudaEventDestroy)(external), cudaSuccess);
}

TEST_F(GraphTest, TheDotFileShowsNodesAndEdges) {
  cudaGraph_t graph = capture([&] {
    ASSERT_EQ(RT(cudaMemsetAsync)(memory_, 1, 1, stream_), cudaSuccess);
    ASSERT_EQ(RT(cudaMemcpyAsync)(memory_, memory_, 1, cudaMemcpyDeviceToDevice, stream_),
              cudaSuccess);
  });
  const std::string path = ::testing::TempDir() + "/graph.dot";
  ASSERT_EQ(RT(cudaGraphDebugDotPrint)(graph, path.c_str(), cudaGraphDebugDotFlagsVerbose),
            cudaSuccess);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(),
            "digraph dot {\n"
            "\"node_0\" [shape=\"record\" label=\"{MEMSET | device 0}\"];\n"
            "\"node_1\" [shape=\"record\" label=\"{MEMCPY | device 0}\"];\n"
            "\"node_0\" -> \"node_1\";\n"
            "}\n");
  std::remove(path.c_str());
  EXPECT_EQ(RT(cudaGraphDebugDotPrint)(graph, "/no/such/folder/graph.dot", 0),
            cudaErrorOperatingSystem);
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
}

// ---- kernels that the control interface records

struct Recorded {
  int runs = 0;
  int releases = 0;
  int result = 0;

  static int run(void* context) {
    auto* recorded = static_cast<Recorded*>(context);
    ++recorded->runs;
    return recorded->result;
  }
  static void release(void* context) { ++static_cast<Recorded*>(context)->releases; }
};

class KernelGraphTest : public GraphTest {
 protected:
  int launch_recorded(Recorded* recorded, cudaStream_t stream, std::uint64_t duration_ns = 0) {
    const uvmsim_access access{memory_, kBytes, UVMSIM_WRITE};
    return uvmsim_launch(0, stream, &access, 1, duration_ns, &Recorded::run, &Recorded::release,
                         recorded);
  }
};

TEST_F(KernelGraphTest, AKernelRunsAtOnceOutsideACapture) {
  Recorded recorded;
  ASSERT_EQ(launch_recorded(&recorded, stream_), UVMSIM_OK);
  EXPECT_EQ(recorded.runs, 1);
  EXPECT_EQ(recorded.releases, 1);
  recorded.result = 1;
  EXPECT_EQ(launch_recorded(&recorded, stream_), UVMSIM_ERROR_LAUNCH);
  EXPECT_EQ(recorded.releases, 2);
}

TEST_F(KernelGraphTest, ACapturedKernelRunsAtLaunchesAndIsReleasedWithItsLastHolder) {
  Recorded recorded;
  cudaGraph_t graph = capture([&] { ASSERT_EQ(launch_recorded(&recorded, stream_), UVMSIM_OK); });
  cudaGraphExec_t exec = instantiate(graph);
  EXPECT_EQ(recorded.runs, 0);
  launch(exec);
  launch(exec);
  EXPECT_EQ(recorded.runs, 2);
  uvmsim_counters counters{};
  uvmsim_get_counters(&counters);
  EXPECT_EQ(counters.kernels, 2U);
  EXPECT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
  EXPECT_EQ(recorded.releases, 0);
  destroy(exec);
  EXPECT_EQ(recorded.releases, 1);
}

TEST_F(KernelGraphTest, AFailedCaptureReleasesItsKernels) {
  Recorded recorded;
  ASSERT_EQ(RT(cudaStreamBeginCapture)(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(launch_recorded(&recorded, stream_), UVMSIM_OK);
  EXPECT_EQ(RT(cudaStreamSynchronize)(stream_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(launch_recorded(&recorded, stream_), UVMSIM_ERROR_CAPTURE);
  EXPECT_EQ(recorded.releases, 1) << "the one that was refused";
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(RT(cudaStreamEndCapture)(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(recorded.releases, 2);
  EXPECT_EQ(recorded.runs, 0);
}

TEST_F(KernelGraphTest, AFailingKernelEndsTheLaunch) {
  Recorded failing{.result = 1};
  Recorded later;
  cudaGraphExec_t exec = record([&] {
    ASSERT_EQ(launch_recorded(&failing, stream_), UVMSIM_OK);
    ASSERT_EQ(launch_recorded(&later, stream_), UVMSIM_OK);
  });
  EXPECT_EQ(RT(cudaGraphLaunch)(exec, stream_), cudaErrorLaunchFailure);
  EXPECT_EQ(later.runs, 0);
  failing.result = 0;
  EXPECT_EQ(RT(cudaGraphLaunch)(exec, stream_), cudaSuccess);
  EXPECT_EQ(later.runs, 1);
  destroy(exec);
}

TEST_F(KernelGraphTest, MemoryThatIsGoneFailsTheLaunch) {
  void* gone = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&gone, 16), cudaSuccess);
  Recorded recorded;
  cudaGraphExec_t exec = record([&] {
    const uvmsim_access access{gone, 16, UVMSIM_READ};
    ASSERT_EQ(
        uvmsim_launch(0, stream_, &access, 1, 0, &Recorded::run, &Recorded::release, &recorded),
        UVMSIM_OK);
  });
  ASSERT_EQ(RT(cudaFree)(gone), cudaSuccess);
  EXPECT_EQ(RT(cudaGraphLaunch)(exec, stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(recorded.runs, 0);
  destroy(exec);
}

TEST_F(KernelGraphTest, AKernelWhoseCallerDoesTheWorkCannotBeRecorded) {
  ASSERT_EQ(RT(cudaStreamBeginCapture)(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(uvmsim_kernel(0, stream_, nullptr, 0, 0), UVMSIM_ERROR_CAPTURE);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(RT(cudaStreamEndCapture)(stream_, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(KernelGraphTest, BranchesTakeTimeSideBySide) {
  Recorded recorded;
  cudaGraphExec_t exec = record([&] {
    ASSERT_EQ(launch_recorded(&recorded, stream_, 100), UVMSIM_OK);
    ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
    ASSERT_EQ(RT(cudaStreamWaitEvent)(other_, event_, 0), cudaSuccess);
    ASSERT_EQ(launch_recorded(&recorded, other_, 5000), UVMSIM_OK);
    ASSERT_EQ(launch_recorded(&recorded, stream_, 3000), UVMSIM_OK);
    ASSERT_EQ(RT(cudaEventRecord)(event_, other_), cudaSuccess);
    ASSERT_EQ(RT(cudaStreamWaitEvent)(stream_, event_, 0), cudaSuccess);
    ASSERT_EQ(launch_recorded(&recorded, stream_, 10), UVMSIM_OK);
  });
  const std::uint64_t start = uvmsim_now_ns();
  launch(exec);
  EXPECT_EQ(uvmsim_now_ns(), start) << "a launch does not wait";
  ASSERT_EQ(RT(cudaGraphLaunch)(exec, other_), cudaSuccess);
  ASSERT_EQ(RT(cudaStreamSynchronize)(stream_), cudaSuccess);
  EXPECT_EQ(uvmsim_now_ns(), start + 5110);
  ASSERT_EQ(RT(cudaStreamSynchronize)(other_), cudaSuccess);
  EXPECT_EQ(uvmsim_now_ns(), start + 2 * 5110) << "launches of one graph follow each other";
  destroy(exec);
}

TEST_F(KernelGraphTest, ManagedMemoryMovesAtTheLaunch) {
  constexpr std::size_t kBlock = std::size_t{2} << 20;
  void* managed = nullptr;
  ASSERT_EQ(RT(cudaMallocManaged)(&managed, kBlock, cudaMemAttachGlobal), cudaSuccess);
  const auto resident = [&] {
    std::size_t bytes = 0;
    EXPECT_EQ(uvmsim_residency(managed, kBlock, 0, &bytes), UVMSIM_OK);
    return bytes;
  };
  Recorded recorded;
  cudaGraphExec_t exec = record([&] {
    const uvmsim_access access{managed, kBlock, UVMSIM_WRITE};
    ASSERT_EQ(
        uvmsim_launch(0, stream_, &access, 1, 0, &Recorded::run, &Recorded::release, &recorded),
        UVMSIM_OK);
  });
  EXPECT_EQ(resident(), 0U);
  EXPECT_EQ(*static_cast<unsigned char*>(managed), 0);
  launch(exec);
  EXPECT_EQ(resident(), kBlock);
  destroy(exec);
  EXPECT_EQ(RT(cudaFree)(managed), cudaSuccess);
}

TEST_F(KernelGraphTest, AGraphSpansDevices) {
  ASSERT_EQ(RT(cudaSetDevice)(1), cudaSuccess);
  cudaStream_t far = nullptr;
  cudaEvent_t far_event = nullptr;
  void* far_memory = nullptr;
  ASSERT_EQ(RT(cudaStreamCreateWithFlags)(&far, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(RT(cudaEventCreateWithFlags)(&far_event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(RT(cudaMalloc)(&far_memory, 16), cudaSuccess);
  ASSERT_EQ(RT(cudaSetDevice)(0), cudaSuccess);
  Recorded near_kernel;
  Recorded far_kernel;
  cudaGraphExec_t exec = record([&] {
    ASSERT_EQ(launch_recorded(&near_kernel, stream_, 100), UVMSIM_OK);
    ASSERT_EQ(RT(cudaEventRecord)(event_, stream_), cudaSuccess);
    ASSERT_EQ(RT(cudaStreamWaitEvent)(far, event_, 0), cudaSuccess);
    const uvmsim_access access{far_memory, 16, UVMSIM_WRITE};
    EXPECT_EQ(uvmsim_launch(0, far, &access, 1, 7, &Recorded::run, &Recorded::release, &far_kernel),
              UVMSIM_ERROR_INVALID)
        << "another device's stream";
    ASSERT_EQ(uvmsim_launch(1, far, &access, 1, 7, &Recorded::run, &Recorded::release, &far_kernel),
              UVMSIM_OK);
    ASSERT_EQ(RT(cudaEventRecord)(far_event, far), cudaSuccess);
    ASSERT_EQ(RT(cudaStreamWaitEvent)(stream_, far_event, 0), cudaSuccess);
  });
  const std::uint64_t start = uvmsim_now_ns();
  launch(exec);
  EXPECT_EQ(near_kernel.runs, 1);
  EXPECT_EQ(far_kernel.runs, 1);
  ASSERT_EQ(RT(cudaStreamSynchronize)(stream_), cudaSuccess);
  EXPECT_EQ(uvmsim_now_ns(), start + 107);
  destroy(exec);
  EXPECT_EQ(RT(cudaStreamDestroy)(far), cudaSuccess);
  EXPECT_EQ(RT(cudaEventDestroy)(far_event), cudaSuccess);
  EXPECT_EQ(RT(cudaFree)(far_memory), cudaSuccess);
}

TEST_F(KernelGraphTest, ThreadsCaptureAndLaunchSideBySide) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::vector<int> runs(kThreads, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i, &runs] {
      cudaStream_t stream = nullptr;
      ASSERT_EQ(RT(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking), cudaSuccess);
      for (int round = 0; round < kRounds; ++round) {
        ASSERT_EQ(RT(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeThreadLocal),
                  cudaSuccess);
        Recorded recorded;
        ASSERT_EQ(launch_recorded(&recorded, stream), UVMSIM_OK);
        cudaGraph_t graph = nullptr;
        ASSERT_EQ(RT(cudaStreamEndCapture)(stream, &graph), cudaSuccess);
        cudaGraphExec_t exec = nullptr;
        ASSERT_EQ(RT(cudaGraphInstantiate)(&exec, graph, 0), cudaSuccess);
        ASSERT_EQ(RT(cudaGraphLaunch)(exec, stream), cudaSuccess);
        ASSERT_EQ(RT(cudaGraphExecDestroy)(exec), cudaSuccess);
        ASSERT_EQ(RT(cudaGraphDestroy)(graph), cudaSuccess);
        ASSERT_EQ(recorded.releases, 1);
        runs[static_cast<std::size_t>(i)] += recorded.runs;
      }
      ASSERT_EQ(RT(cudaStreamDestroy)(stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runs, std::vector<int>(kThreads, kRounds));
}

// ---- the driver's functions for graphs

TEST_F(GraphTest, TheDriverHandlesTheSameGraphs) {
  cudaGraph_t graph =
      capture([&] { ASSERT_EQ(RT(cudaMemsetAsync)(memory_, 4, 1, stream_), cudaSuccess); });
  CUgraphExec exec = nullptr;
  ASSERT_EQ(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuGraphLaunch)(exec, stream_), CUDA_SUCCESS);
  EXPECT_EQ(byte(), 4);
  EXPECT_EQ(CU(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  auto* get = StandIn::driver()
                  .function<CUresult(const char*, void**, int, cuuint64_t,
                                     CUdriverProcAddressQueryResult*)>("cuGetProcAddress_v2");
  void* function = nullptr;
  ASSERT_EQ(get("cuGraphInstantiate", &function, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, StandIn::driver().find("cuGraphInstantiateWithFlags"))
      << "what that name means since CUDA 12";
  ASSERT_EQ(get("cuGraphInstantiate", &function, 11040, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, StandIn::driver().find("cuGraphInstantiate_v2"));
  std::size_t count = 0;
  ASSERT_EQ(CU(cuGraphGetNodes)(graph, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphTest, TheDriversOldFormsDoWithoutEdgeData) {
  const StandIn& driver = StandIn::driver();
  ASSERT_EQ(driver.function<CUresult(CUstream)>("cuStreamBeginCapture")(stream_), CUDA_SUCCESS);
  ASSERT_EQ(RT(cudaMemsetAsync)(memory_, 1, 1, stream_), cudaSuccess);
  ASSERT_EQ(RT(cudaMemsetAsync)(memory_, 2, 1, stream_), cudaSuccess);
  CUgraph graph = nullptr;
  ASSERT_EQ(CU(cuStreamEndCapture)(stream_, &graph), CUDA_SUCCESS);
  std::vector<CUgraphNode> nodes(2);
  std::size_t count = 2;
  ASSERT_EQ(CU(cuGraphGetNodes)(graph, nodes.data(), &count), CUDA_SUCCESS);
  CUgraphNode from = nullptr;
  CUgraphNode to = nullptr;
  count = 1;
  ASSERT_EQ((driver.function<CUresult(CUgraph, CUgraphNode*, CUgraphNode*, size_t*)>(
                "cuGraphGetEdges")(graph, &from, &to, &count)),
            CUDA_SUCCESS);
  EXPECT_EQ(from, nodes[0]);
  EXPECT_EQ(to, nodes[1]);
  using OfNode = CUresult(CUgraphNode, CUgraphNode*, size_t*);
  ASSERT_EQ(driver.function<OfNode>("cuGraphNodeGetDependencies")(nodes[1], &from, &count),
            CUDA_SUCCESS);
  EXPECT_EQ(from, nodes[0]);
  ASSERT_EQ(driver.function<OfNode>("cuGraphNodeGetDependentNodes")(nodes[0], &to, &count),
            CUDA_SUCCESS);
  EXPECT_EQ(to, nodes[1]);
  CUgraphNode error_node = nodes[0];
  char log[8] = "old";
  CUgraphExec exec = nullptr;
  ASSERT_EQ((driver.function<CUresult(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t)>(
                "cuGraphInstantiate_v2")(&exec, graph, &error_node, log, sizeof log)),
            CUDA_SUCCESS);
  EXPECT_EQ(error_node, nullptr);
  EXPECT_STREQ(log, "");
  ASSERT_EQ(CU(cuGraphLaunch)(exec, stream_), CUDA_SUCCESS);
  EXPECT_EQ(byte(), 2);
  EXPECT_EQ(CU(cuGraphExecDestroy)(exec), CUDA_SUCCESS);
  EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
}

}  // namespace
}  // namespace uvmsim::test
