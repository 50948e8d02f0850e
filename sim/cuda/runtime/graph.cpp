// Graphs. The calls that only CUDA has are in graph_edges.cpp.
#include "sim/api/graphs.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  RT_ENTER;
  return finish(create_graph(out_of(graph), flags));
}

RT_API cudaGraphDestroy(cudaGraph_t graph) {
  RT_ENTER;
  return finish(machine().graphs().destroy(graph));
}

RT_API cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  RT_ENTER;
  return finish(clone_graph(graph, out_of(clone)));
}

RT_API cudaGraphNodeFindInClone(cudaGraphNode_t* node, cudaGraphNode_t original,
                                cudaGraph_t clone) {
  RT_ENTER;
  if (node == nullptr) return fail(cudaErrorInvalidValue);
  return finish(machine().graphs().find_in_clone(original, clone, out_of(node)));
}

RT_API cudaGraphDestroyNode(cudaGraphNode_t node) {
  RT_ENTER;
  return finish(machine().graphs().destroy_node(node));
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

RT_API cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                     unsigned long long flags) {
  RT_ENTER_DEVICE;
  (void)device;
  return finish(instantiate_graph(graph, flags, out_of(exec)));
}

RT_API cudaGraphExecDestroy(cudaGraphExec_t exec) {
  RT_ENTER;
  return finish(machine().graphs().destroy_exec(exec));
}

RT_API cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(upload_graph(device, stream, exec));
}

RT_API cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().graphs().launch(device, stream, exec));
}
