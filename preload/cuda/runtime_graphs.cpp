// The runtime's calls about executable graphs, whose uses are noted. A graph of the runtime is one
// of the driver: the handles are the same.
#include "preload/cuda/driver.hpp"
#include "preload/cuda/noted_graphs.hpp"
#include "preload/cuda/vendor.hpp"
#include "preload/served_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// These two have other parameters in CUDA 11. All that either form may have are passed on.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
__attribute__((visibility("default"))) cudaError_t uvmalloc_graph_instantiate(
    CUgraphExec* out, CUgraph graph, void* third, void* fourth,
    std::size_t fifth) __asm__("cudaGraphInstantiate");
__attribute__((visibility("default"))) cudaError_t uvmalloc_graph_exec_update(
    CUgraphExec executable, CUgraph graph, void* third,
    void* fourth) __asm__("cudaGraphExecUpdate");
}

cudaError_t uvmalloc_graph_instantiate(CUgraphExec* out, CUgraph graph, void* third, void* fourth,
                                       std::size_t fifth) {
  static constinit NextFunction<decltype(&uvmalloc_graph_instantiate)> next{"cudaGraphInstantiate",
                                                                            "libcudart.so"};
  const cudaError_t result = pass_on(next.get(), out, graph, third, fourth, fifth);
  if (result == cudaSuccess) note_graph("cudaGraphInstantiate", *out, graph);
  return result;
}

cudaError_t uvmalloc_graph_exec_update(CUgraphExec executable, CUgraph graph, void* third,
                                       void* fourth) {
  static constinit NextFunction<decltype(&uvmalloc_graph_exec_update)> next{"cudaGraphExecUpdate",
                                                                            "libcudart.so"};
  const cudaError_t result = pass_on(next.get(), executable, graph, third, fourth);
  if (result == cudaSuccess) note_graph("cudaGraphExecUpdate", executable, graph);
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out,
                                                             cudaGraph_t graph,
                                                             unsigned long long flags) {
  const cudaError_t result =
      pass_on(NEXT_OF_RUNTIME(cudaGraphInstantiateWithFlags), out, graph, flags);
  if (result == cudaSuccess) note_graph(__func__, *out, graph);
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphInstantiateWithParams(
    cudaGraphExec_t* out, cudaGraph_t graph, cudaGraphInstantiateParams* parameters) {
  const cudaError_t result =
      pass_on(NEXT_OF_RUNTIME(cudaGraphInstantiateWithParams), out, graph, parameters);
  if (result == cudaSuccess) note_graph(__func__, *out, graph);
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphInstantiateWithParams_ptsz(
    cudaGraphExec_t* out, cudaGraph_t graph, cudaGraphInstantiateParams* parameters) {
  const cudaError_t result =
      pass_on(NEXT_OF_RUNTIME(cudaGraphInstantiateWithParams_ptsz), out, graph, parameters);
  if (result == cudaSuccess) note_graph(__func__, *out, graph);
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t executable, cudaGraphNode_t node, const cudaKernelNodeParams* parameters) {
  const cudaError_t result =
      pass_on(NEXT_OF_RUNTIME(cudaGraphExecKernelNodeSetParams), executable, node, parameters);
  if (result == cudaSuccess) {
    note_node(__func__, executable, node, [&] {
      return words_of_symbol(parameters->func, {parameters->kernelParams, parameters->extra});
    });
  }
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t executable,
                                                                    cudaGraphNode_t node,
                                                                    cudaGraph_t child) {
  const cudaError_t result =
      pass_on(NEXT_OF_RUNTIME(cudaGraphExecChildGraphNodeSetParams), executable, node, child);
  if (result == cudaSuccess) note_child(__func__, executable, node, child);
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t executable,
                                                          cudaGraphNode_t node,
                                                          cudaGraphNodeParams* parameters) {
  const cudaError_t result =
      pass_on(NEXT_OF_RUNTIME(cudaGraphExecNodeSetParams), executable, node, parameters);
  if (result != cudaSuccess) return result;
  if (parameters->type == cudaGraphNodeTypeGraph)
    note_child(__func__, executable, node, parameters->graph.graph);
  if (parameters->type == cudaGraphNodeTypeKernel) {
    const cudaKernelNodeParamsV2& kernel = parameters->kernel;
    note_node(__func__, executable, node, [&] {
      return words_of_symbol(kernel.func, {kernel.kernelParams, kernel.extra});
    });
  }
  return result;
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  if (may_want_uses()) GraphUses::instance().forget(executable);
  return pass_on(NEXT_OF_RUNTIME(cudaGraphExecDestroy), executable);
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (wants_uses()) note_graph_launch(__func__, executable, device_of_stream(stream), stream);
  return pass_on(NEXT_OF_RUNTIME(cudaGraphLaunch), executable, stream);
}

UVMALLOC_INTERPOSE cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t executable,
                                                    cudaStream_t stream) {
  if (wants_uses())
    note_graph_launch(__func__, executable, device_of_stream(stream), per_thread(stream));
  return pass_on(NEXT_OF_RUNTIME(cudaGraphLaunch_ptsz), executable, stream);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
