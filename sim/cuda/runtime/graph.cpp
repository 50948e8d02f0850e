// Graphs.
#include <uvmalloc/sim/api/graphs.hpp>
#include <uvmalloc/sim/cuda/runtime/entry.hpp>

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// Handles are addresses of nothing that is declared.
template <class Handle>
void** out_of(Handle* handle) {
  return reinterpret_cast<void**>(handle);
}

void* const* list_of(const cudaGraphNode_t* nodes) {
  return reinterpret_cast<void* const*>(nodes);
}

}  // namespace

RT_API cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  RT_ENTER;
  return finish(create_graph(out_of(graph), flags));
}

RT_API cudaGraphDestroy(cudaGraph_t graph) {
  RT_ENTER;
  return finish(machine().destroy_graph(graph));
}

RT_API cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  RT_ENTER;
  return finish(clone_graph(graph, out_of(clone)));
}

RT_API cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                             const cudaGraphNode_t* dependencies, size_t count) {
  RT_ENTER_DEVICE;
  return finish(
      add_node(graph, device, list_of(dependencies), count, nullptr, nullptr, out_of(node)));
}

RT_API cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                            const cudaGraphNode_t* dependencies, size_t count,
                            const cudaHostNodeParams* parameters) {
  RT_ENTER_DEVICE;
  if (parameters == nullptr || parameters->fn == nullptr) return fail(cudaErrorInvalidValue);
  return finish(add_node(graph, device, list_of(dependencies), count, parameters->fn,
                         parameters->userData, out_of(node)));
}

RT_API cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  RT_ENTER;
  return finish(graph_nodes(graph, out_of(nodes), count));
}

RT_API cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  RT_ENTER;
  return finish(graph_root_nodes(graph, out_of(nodes), count));
}

RT_API cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                         cudaGraphEdgeData* edges, size_t* count) {
  RT_ENTER;
  return finish(graph_edges(graph, out_of(from), out_of(to), edges, count));
}

RT_API cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  RT_ENTER;
  return finish(node_type(node, reinterpret_cast<int*>(type)));
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

RT_API cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                     unsigned long long flags) {
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

RT_API cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
  RT_ENTER;
  return finish(graph_exec_flags(exec, flags));
}

RT_API cudaGraphExecDestroy(cudaGraphExec_t exec) {
  RT_ENTER;
  return finish(machine().destroy_graph_exec(exec));
}

RT_API cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(upload_graph(device, stream, exec));
}

RT_API cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().launch_graph(device, stream, exec));
}
