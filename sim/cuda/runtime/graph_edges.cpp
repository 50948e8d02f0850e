// Calls about graphs that HIP does not have or declares differently: edges with data, parameters of
// an instance.
#include "sim/api/graphs.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                         cudaGraphEdgeData* edges, size_t* count) {
  RT_ENTER;
  return finish(graph_edges(graph, out_of(from), out_of(to), edges, count));
}

RT_API cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  RT_ENTER;
  return finish(node_type(node, reinterpret_cast<int*>(type)));
}

RT_API cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* out) {
  RT_ENTER;
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  std::shared_ptr<const KernelCall> call;
  if (const Status status = kernel_call(node, &call); status != Status::kOk) return finish(status);
  const auto dimensions = [](const unsigned(&each)[3]) { return dim3(each[0], each[1], each[2]); };
  *out = {};
  out->func = const_cast<void*>(call->function);
  out->gridDim = dimensions(call->grid.blocks);
  out->blockDim = dimensions(call->grid.threads);
  out->kernelParams = const_cast<void**>(call->arguments.data());
  return cudaSuccess;
}

RT_API cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* out) {
  RT_ENTER;
  return finish(child_graph(node, out_of(out)));
}

RT_API cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                                    cudaGraphEdgeData* edges, size_t* count) {
  RT_ENTER;
  return finish(node_dependencies(node, out_of(dependencies), edges, count));
}

RT_API cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* dependents,
                                      cudaGraphEdgeData* edges, size_t* count) {
  RT_ENTER;
  return finish(node_dependents(node, out_of(dependents), edges, count));
}

RT_API cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
  RT_ENTER;
  return finish(print_graph(graph, path));
}

RT_API cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  RT_ENTER_DEVICE;
  (void)device;
  return finish(instantiate_graph(graph, flags, out_of(exec)));
}

RT_API cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                      cudaGraphInstantiateParams* parameters) {
  RT_ENTER_DEVICE;
  (void)device;
  if (parameters == nullptr) return fail(cudaErrorInvalidValue);
  const Status status = instantiate_graph(graph, parameters->flags, out_of(exec));
  parameters->errNode_out = nullptr;
  parameters->result_out =
      status == Status::kOk ? cudaGraphInstantiateSuccess : cudaGraphInstantiateError;
  return finish(status);
}

RT_API cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                           cudaGraphExecUpdateResultInfo* info) {
  RT_ENTER;
  const Status status = machine().graphs().update_exec(exec, graph);
  if (info != nullptr) {
    *info = {};
    if (status != Status::kOk) info->result = cudaGraphExecUpdateErrorTopologyChanged;
  }
  return status == Status::kIllegalState ? fail(cudaErrorGraphExecUpdateFailure) : finish(status);
}

RT_API cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
  RT_ENTER;
  return finish(graph_exec_flags(exec, flags));
}
