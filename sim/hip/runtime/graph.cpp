// Graphs, and what can be asked and changed about a capture that goes on. HIP's forms have no data
// of edges.
#include <uvmalloc/sim/api/graphs.hpp>
#include <uvmalloc/sim/hip/runtime/entry.hpp>

using namespace uvmsim;
using namespace uvmsim::hip;

namespace {

// Handles are addresses of nothing that is declared.
template <class Handle>
void** out_of(Handle* handle) {
  return reinterpret_cast<void**>(handle);
}

void* const* list_of(const hipGraphNode_t* nodes) {
  return reinterpret_cast<void* const*>(nodes);
}

}  // namespace

RT_API hipStreamGetCaptureInfo(hipStream_t stream, hipStreamCaptureStatus* status,
                               unsigned long long* id) {
  RT_ENTER_DEVICE;
  return finish(capture_info(device, stream, {.status = reinterpret_cast<int*>(status), .id = id}));
}

RT_API hipStreamGetCaptureInfo_v2(hipStream_t stream, hipStreamCaptureStatus* status,
                                  unsigned long long* id, hipGraph_t* graph,
                                  const hipGraphNode_t** dependencies, size_t* count) {
  RT_ENTER_DEVICE;
  return finish(capture_info(device, stream,
                             {.status = reinterpret_cast<int*>(status),
                              .id = id,
                              .graph = out_of(graph),
                              .dependencies = reinterpret_cast<void* const**>(dependencies),
                              .count = count}));
}

RT_API hipStreamUpdateCaptureDependencies(hipStream_t stream, hipGraphNode_t* dependencies,
                                          size_t count, unsigned flags) {
  RT_ENTER_DEVICE;
  return finish(update_capture_dependencies(device, stream, list_of(dependencies), count, flags));
}

RT_API hipGraphCreate(hipGraph_t* graph, unsigned flags) {
  RT_ENTER;
  return finish(create_graph(out_of(graph), flags));
}

RT_API hipGraphDestroy(hipGraph_t graph) {
  RT_ENTER;
  return finish(machine().destroy_graph(graph));
}

RT_API hipGraphClone(hipGraph_t* clone, hipGraph_t graph) {
  RT_ENTER;
  return finish(clone_graph(graph, out_of(clone)));
}

RT_API hipGraphAddEmptyNode(hipGraphNode_t* node, hipGraph_t graph,
                            const hipGraphNode_t* dependencies, size_t count) {
  RT_ENTER_DEVICE;
  return finish(
      add_node(graph, device, list_of(dependencies), count, nullptr, nullptr, out_of(node)));
}

RT_API hipGraphAddHostNode(hipGraphNode_t* node, hipGraph_t graph,
                           const hipGraphNode_t* dependencies, size_t count,
                           const hipHostNodeParams* parameters) {
  RT_ENTER_DEVICE;
  if (parameters == nullptr || parameters->fn == nullptr) return fail(hipErrorInvalidValue);
  return finish(add_node(graph, device, list_of(dependencies), count, parameters->fn,
                         parameters->userData, out_of(node)));
}

RT_API hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
  RT_ENTER;
  return finish(graph_nodes(graph, out_of(nodes), count));
}

RT_API hipGraphGetRootNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
  RT_ENTER;
  return finish(graph_root_nodes(graph, out_of(nodes), count));
}

RT_API hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph, hipGraphNode_t* error_node,
                           char*, size_t) {
  RT_ENTER_DEVICE;
  (void)device;
  if (error_node != nullptr) *error_node = nullptr;
  return finish(instantiate_graph(graph, 0, out_of(exec)));
}

RT_API hipGraphInstantiateWithFlags(hipGraphExec_t* exec, hipGraph_t graph,
                                    unsigned long long flags) {
  RT_ENTER_DEVICE;
  (void)device;
  return finish(instantiate_graph(graph, flags, out_of(exec)));
}

RT_API hipGraphExecDestroy(hipGraphExec_t exec) {
  RT_ENTER;
  return finish(machine().destroy_graph_exec(exec));
}

RT_API hipGraphUpload(hipGraphExec_t exec, hipStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(upload_graph(device, stream, exec));
}

RT_API hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream) {
  RT_ENTER_DEVICE;
  return finish(machine().launch_graph(device, stream, exec));
}
