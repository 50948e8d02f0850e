// The driver's calls about executable graphs, whose uses are noted.
#include "preload/cuda/driver.hpp"
#include "preload/cuda/noted_graphs.hpp"
#include "preload/served_answers.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

UVMALLOC_INTERPOSE CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph,
                                                        unsigned long long flags) {
  const CUresult result = pass_on(NEXT_OF_DRIVER(cuGraphInstantiateWithFlags), out, graph, flags);
  if (result == CUDA_SUCCESS) note_graph(__func__, *out, graph);
  return result;
}

UVMALLOC_INTERPOSE CUresult cuGraphInstantiateWithParams(
    CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuGraphInstantiateWithParams), out, graph, parameters);
  if (result == CUDA_SUCCESS) note_graph(__func__, *out, graph);
  return result;
}

UVMALLOC_INTERPOSE CUresult cuGraphInstantiateWithParams_ptsz(
    CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuGraphInstantiateWithParams_ptsz), out, graph, parameters);
  if (result == CUDA_SUCCESS) note_graph(__func__, *out, graph);
  return result;
}

UVMALLOC_INTERPOSE CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                                                 CUgraphExecUpdateResultInfo* info) {
  const CUresult result = pass_on(NEXT_OF_DRIVER(cuGraphExecUpdate_v2), executable, graph, info);
  if (result == CUDA_SUCCESS) note_graph(__func__, executable, graph);
  return result;
}

UVMALLOC_INTERPOSE CUresult cuGraphExecKernelNodeSetParams_v2(
    CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuGraphExecKernelNodeSetParams_v2), executable, node, parameters);
  if (result == CUDA_SUCCESS) {
    note_node(__func__, executable, node, [&] { return words_of(*parameters); });
  }
  return result;
}

// The forms of CUDA 11 and earlier.
#undef cuGraphExecUpdate
UVMALLOC_INTERPOSE CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph,
                                              CUgraphNode* error_node,
                                              CUgraphExecUpdateResult* answer) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuGraphExecUpdate), executable, graph, error_node, answer);
  if (result == CUDA_SUCCESS) note_graph(__func__, executable, graph);
  return result;
}

#undef cuGraphExecKernelNodeSetParams
UVMALLOC_INTERPOSE CUresult cuGraphExecKernelNodeSetParams(
    CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuGraphExecKernelNodeSetParams), executable, node, parameters);
  if (result == CUDA_SUCCESS) {
    note_node(__func__, executable, node, [&] {
      return words_of(parameters->func, {parameters->kernelParams, parameters->extra});
    });
  }
  return result;
}

UVMALLOC_INTERPOSE CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable,
                                                               CUgraphNode node, CUgraph child) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuGraphExecChildGraphNodeSetParams), executable, node, child);
  if (result == CUDA_SUCCESS) note_child(__func__, executable, node, child);
  return result;
}

UVMALLOC_INTERPOSE CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                     CUgraphNodeParams* parameters) {
  const CUresult result =
      pass_on(NEXT_OF_DRIVER(cuGraphExecNodeSetParams), executable, node, parameters);
  if (result != CUDA_SUCCESS) return result;
  if (parameters->type == CU_GRAPH_NODE_TYPE_GRAPH)
    note_child(__func__, executable, node, parameters->graph.graph);
  if (parameters->type == CU_GRAPH_NODE_TYPE_KERNEL) {
    note_node(__func__, executable, node, [&] {
      CUDA_KERNEL_NODE_PARAMS kernel{};
      kernel.func = parameters->kernel.func;
      kernel.kern = parameters->kernel.kern;
      kernel.kernelParams = parameters->kernel.kernelParams;
      kernel.extra = parameters->kernel.extra;
      return words_of(kernel);
    });
  }
  return result;
}

UVMALLOC_INTERPOSE CUresult cuGraphExecDestroy(CUgraphExec executable) {
  if (may_want_uses()) GraphUses::instance().forget(executable);
  return pass_on(NEXT_OF_DRIVER(cuGraphExecDestroy), executable);
}

UVMALLOC_INTERPOSE CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  if (wants_uses())
    note_graph_launch(__func__, executable, device_of_stream_by_driver(stream), stream);
  return pass_on(NEXT_OF_DRIVER(cuGraphLaunch), executable, stream);
}

UVMALLOC_INTERPOSE CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
  if (wants_uses()) {
    note_graph_launch(__func__, executable, device_of_stream_by_driver(stream), per_thread(stream));
  }
  return pass_on(NEXT_OF_DRIVER(cuGraphLaunch_ptsz), executable, stream);
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
