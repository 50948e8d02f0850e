// Repeats a step of kernels over more memory than the device has. The arguments are the mode, the
// number of blocks of 2 MiB, and the number of steps. Each step prints the first value of a block.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "kernel_bodies.hpp"

__global__ void mix(float* to, const float* from, float factor, int count) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < count) mix_element(to, from, factor, index);
}

__global__ void mix_views(MixViews views, float factor) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index < views.to.count) mix_element(views.to.values, views.from.values, factor, index);
}

__global__ void tick(int, double) {}

namespace {

constexpr int kCount = (2 << 20) / sizeof(float);
constexpr unsigned kThreads = 256;
constexpr unsigned kGrid = kCount / kThreads;
constexpr float kFactor = 0.5f;

using Launch = void (*)(float* to, const float* from, cudaStream_t stream);

void launch(float* to, const float* from, cudaStream_t stream) {
  mix<<<kGrid, kThreads, 0, stream>>>(to, from, kFactor, kCount);
  CHECK(cudaGetLastError());
}

void launch_symbol(float* to, const float* from, cudaStream_t stream) {
  float factor = kFactor;
  int count = kCount;
  void* arguments[] = {&to, &from, &factor, &count};
  CHECK(
      cudaLaunchKernel(reinterpret_cast<const void*>(mix), kGrid, kThreads, arguments, 0, stream));
}

void launch_views(float* to, const float* from, cudaStream_t stream) {
  const MixViews views{7, {to, kCount}, {const_cast<float*>(from), kCount}};
  mix_views<<<kGrid, kThreads, 0, stream>>>(views, kFactor);
  tick<<<1, 1, 0, stream>>>(3, 0.25);
  CHECK(cudaGetLastError());
}

template <class Function>
Function entry_point(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult reason{};
  CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &reason));
  return reinterpret_cast<Function>(found);
}

// Launches through the driver, in turn with one address for each argument and with a buffer.
void launch_by_driver(float* to, const float* from, cudaStream_t stream) {
  static const auto launch_kernel = entry_point<decltype(&cuLaunchKernel)>("cuLaunchKernel");
  static bool has_buffer = false;
  has_buffer = !has_buffer;
  cudaFunction_t function = nullptr;
  CHECK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(mix)));
  struct {
    float* to;
    const float* from;
    float factor;
    int count;
  } buffer = {to, from, kFactor, kCount};
  std::size_t size_bytes = sizeof buffer;
  void* arguments[] = {&buffer.to, &buffer.from, &buffer.factor, &buffer.count};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &size_bytes, CU_LAUNCH_PARAM_END};
  if (launch_kernel(function, kGrid, 1, 1, kThreads, 1, 1, 0, stream,
                    has_buffer ? nullptr : arguments, has_buffer ? extra : nullptr) != 0) {
    std::exit(4);
  }
}

void launch_all(Launch kernel, const std::vector<float*>& blocks, cudaStream_t stream) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    kernel(blocks[i], blocks[(i + 1) % blocks.size()], stream);
}

std::vector<float*> group_at(const std::vector<float*>& blocks, std::size_t first,
                             std::size_t size) {
  const auto begin = blocks.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

cudaGraph_t captured(Launch kernel, const std::vector<float*>& blocks, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch_all(kernel, blocks, stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

cudaGraphExec_t instantiated(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  return executable;
}

// Makes a graph use other blocks, in one of two ways.
void change(const char* mode, cudaGraphExec_t executable, cudaGraph_t graph,
            const std::vector<float*>& blocks, cudaStream_t stream) {
  if (std::strcmp(mode, "update") == 0) {
    cudaGraph_t made = captured(launch, blocks, stream);
    cudaGraphExecUpdateResultInfo info{};
    CHECK(cudaGraphExecUpdate(executable, made, &info));
    CHECK(cudaGraphDestroy(made));
    return;
  }
  std::vector<cudaGraphNode_t> nodes(blocks.size());
  std::size_t count = nodes.size();
  CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (std::size_t i = 0; i < count; ++i) {
    float* to = blocks[i];
    const float* from = blocks[(i + 1) % blocks.size()];
    float factor = kFactor;
    int elements = kCount;
    void* arguments[] = {&to, &from, &factor, &elements};
    cudaKernelNodeParams parameters{};
    parameters.func = reinterpret_cast<void*>(mix);
    parameters.gridDim = kGrid;
    parameters.blockDim = kThreads;
    parameters.kernelParams = arguments;
    CHECK(cudaGraphExecKernelNodeSetParams(executable, nodes[i], &parameters));
  }
}

// Puts another block at the same address, which a graph continues to use.
void replace(float* block) {
  std::vector<float*> others;
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(block));
  CHECK(cudaDeviceSynchronize());
  for (float* found = nullptr; found != block; others.push_back(found)) {
    if (others.size() == 8) std::exit(3);
    CHECK(cudaMalloc(reinterpret_cast<void**>(&found), sizeof(float) * kCount));
  }
  others.pop_back();
  for (float* other : others) CHECK(cudaFree(other));
  CHECK(cudaMemset(block, 0, sizeof(float) * kCount));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const char* mode = argv[1];
  const auto is = [&](const char* name) { return std::strcmp(mode, name) == 0; };
  const Launch kernel = is("views")    ? launch_views
                        : is("driver") ? launch_by_driver
                        : is("symbol") ? launch_symbol
                                       : launch;
  cudaStream_t stream = nullptr;
  cudaStream_t second = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  std::vector<float*> blocks(static_cast<std::size_t>(std::atoi(argv[2])));
  for (float*& block : blocks) {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&block), sizeof(float) * kCount));
    CHECK(cudaMemset(block, 0, sizeof(float) * kCount));
  }
  CHECK(cudaDeviceSynchronize());

  // The blocks form groups of eight, and each group is a graph, or one graph has all blocks. If the
  // graphs are to change, each is captured with other blocks before. If there are two streams, a
  // step launches the graph on both.
  std::vector<cudaGraphExec_t> graphs;
  const bool is_one = is("one-graph") || is("one-graph-set") || is("one-graph-streams");
  const bool changes = is("update") || is("set") || is("one-graph-set");
  const bool has_graphs = is_one || changes || is("graph") || is("child") || is("replace");
  const std::size_t size = is_one ? blocks.size() : 8;
  for (std::size_t first = 0; has_graphs && first < blocks.size(); first += size) {
    const std::vector<float*> group = group_at(blocks, first, size);
    std::vector<float*> others = group_at(blocks, 0, size);
    std::reverse(others.begin(), others.end());
    cudaGraph_t graph = captured(kernel, changes ? others : group, stream);
    cudaGraphExec_t made = instantiated(graph);
    if (changes) change(mode, made, graph, group, stream);
    if (is("child")) {
      cudaGraph_t parent = nullptr;
      CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      CHECK(cudaGraphLaunch(made, stream));
      CHECK(cudaStreamEndCapture(stream, &parent));
      made = instantiated(parent);
    }
    graphs.push_back(made);
  }
  const int steps = std::atoi(argv[3]);
  for (int step = 0; step < steps; ++step) {
    if (is("replace")) replace(blocks[static_cast<std::size_t>(step) % blocks.size()]);
    for (cudaGraphExec_t graph : graphs) CHECK(cudaGraphLaunch(graph, stream));
    if (is("one-graph-streams")) CHECK(cudaGraphLaunch(graphs[0], second));
    if (graphs.empty()) launch_all(kernel, blocks, stream);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamSynchronize(second));
    float value = 0.0f;
    CHECK(cudaMemcpy(&value, blocks[static_cast<std::size_t>(step) % blocks.size()], sizeof value,
                     cudaMemcpyDeviceToHost));
    std::printf("step %d: %.6f\n", step, value);
  }
  for (cudaGraphExec_t graph : graphs) CHECK(cudaGraphExecDestroy(graph));
  for (float* block : blocks) CHECK(cudaFree(block));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaStreamDestroy(second));
  return 0;
}
