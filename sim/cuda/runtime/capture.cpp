// Queries and changes of a running capture.
#include "sim/api/graphs.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

RT_API cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                unsigned long long* id, cudaGraph_t* graph,
                                const cudaGraphNode_t** dependencies,
                                const cudaGraphEdgeData** edges, size_t* dependency_count) {
  RT_ENTER_DEVICE;
  if (edges != nullptr) *edges = nullptr;
  return finish(capture_info(device, stream,
                             {.status = reinterpret_cast<int*>(status),
                              .id = id,
                              .graph = reinterpret_cast<void**>(graph),
                              .dependencies = reinterpret_cast<void* const**>(dependencies),
                              .count = dependency_count}));
}

RT_API cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                           const cudaGraphEdgeData*, size_t count, unsigned flags) {
  RT_ENTER_DEVICE;
  return finish(update_capture_dependencies(
      device, stream, reinterpret_cast<void* const*>(dependencies), count, flags));
}
