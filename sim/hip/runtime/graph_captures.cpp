// Queries and changes of a running capture, and HIP's own form of graph instantiation. HIP's forms
// have no edge data. hipify translates the other calls about graphs.
#include "sim/api/graphs.hpp"
#include "sim/hip/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::hip;

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

RT_API hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph, hipGraphNode_t* error_node,
                           char*, size_t) {
  RT_ENTER_DEVICE;
  (void)device;
  if (error_node != nullptr) *error_node = nullptr;
  return finish(instantiate_graph(graph, 0, out_of(exec)));
}
