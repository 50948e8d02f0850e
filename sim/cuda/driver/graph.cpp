// Graphs, in the forms of CUDA 12 and of CUDA 13.
#include "sim/api/graphs.hpp"
#include "sim/cuda/driver/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

// The older versions of this call can return the failed node and a log message. The simulated
// driver returns neither.
CUresult instantiate_reporting(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                               size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes != 0) *log = '\0';
  return finish(instantiate_graph(graph, 0, out_of(exec)));
}

}  // namespace

CU_API cuGraphCreate(CUgraph* graph, unsigned flags) {
  CU_ENTER;
  return finish(create_graph(out_of(graph), flags));
}

CU_API cuGraphDestroy(CUgraph graph) {
  CU_ENTER;
  return finish(machine().graphs().destroy(graph));
}

CU_API cuGraphClone(CUgraph* clone, CUgraph graph) {
  CU_ENTER;
  return finish(clone_graph(graph, out_of(clone)));
}

CU_API cuGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original, CUgraph clone) {
  CU_ENTER;
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return finish(machine().graphs().find_in_clone(original, clone, out_of(node)));
}

CU_API cuGraphDestroyNode(CUgraphNode node) {
  CU_ENTER;
  return finish(machine().graphs().destroy_node(node));
}

CU_API cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           size_t count) {
  CU_ENTER_CONTEXT;
  return finish(
      add_node(graph, device, list_of(dependencies), count, nullptr, nullptr, out_of(node)));
}

CU_API cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                          size_t count, const CUDA_HOST_NODE_PARAMS* parameters) {
  CU_ENTER_CONTEXT;
  if (parameters == nullptr || parameters->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return finish(add_node(graph, device, list_of(dependencies), count, parameters->fn,
                         parameters->userData, out_of(node)));
}

CU_API cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  CU_ENTER;
  return finish(graph_nodes(graph, out_of(nodes), count));
}

CU_API cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  CU_ENTER;
  return finish(graph_root_nodes(graph, out_of(nodes), count));
}

CU_API cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  CU_ENTER;
  return finish(graph_edges(graph, out_of(from), out_of(to), nullptr, count));
}

CU_API cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                          size_t* count) {
  CU_ENTER;
  return finish(graph_edges(graph, out_of(from), out_of(to), edges, count));
}

CU_API cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  CU_ENTER;
  return finish(node_type(node, reinterpret_cast<int*>(type)));
}

CU_API cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* dependencies, size_t* count) {
  CU_ENTER;
  return finish(node_dependencies(node, out_of(dependencies), nullptr, count));
}

CU_API cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* dependencies,
                                     CUgraphEdgeData* edges, size_t* count) {
  CU_ENTER;
  return finish(node_dependencies(node, out_of(dependencies), edges, count));
}

CU_API cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* dependents, size_t* count) {
  CU_ENTER;
  return finish(node_dependents(node, out_of(dependents), nullptr, count));
}

CU_API cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* dependents,
                                       CUgraphEdgeData* edges, size_t* count) {
  CU_ENTER;
  return finish(node_dependents(node, out_of(dependents), edges, count));
}

CU_API cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned) {
  CU_ENTER;
  return finish(print_graph(graph, path));
}

CU_API cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                          size_t log_bytes) {
  CU_ENTER;
  return instantiate_reporting(exec, graph, error_node, log, log_bytes);
}

CU_API cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                             size_t log_bytes) {
  CU_ENTER;
  return instantiate_reporting(exec, graph, error_node, log, log_bytes);
}

CU_API cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  CU_ENTER;
  return finish(instantiate_graph(graph, flags, out_of(exec)));
}

CU_API cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                    CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  CU_ENTER;
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Status status = instantiate_graph(graph, parameters->flags, out_of(exec));
  parameters->hErrNode_out = nullptr;
  parameters->result_out =
      status == Status::kOk ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return finish(status);
}

CU_API cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  CU_ENTER;
  static_assert(sizeof(cuuint64_t) == sizeof(unsigned long long));
  return finish(graph_exec_flags(exec, reinterpret_cast<unsigned long long*>(flags)));
}

CU_API cuGraphExecDestroy(CUgraphExec exec) {
  CU_ENTER;
  return finish(machine().graphs().destroy_exec(exec));
}

CU_API cuGraphUpload(CUgraphExec exec, CUstream stream) {
  CU_ENTER_CONTEXT;
  return finish(upload_graph(device, stream, exec));
}

CU_API cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  CU_ENTER_CONTEXT;
  return finish(machine().graphs().launch(device, stream, exec));
}
