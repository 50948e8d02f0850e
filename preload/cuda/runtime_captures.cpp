// Captures of streams by CUDA's runtime, passed on after they have been noted.
#include "preload/captures.hpp"
#include "preload/cuda/vendor.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// `order`: the stream as its own name says which default stream it is.
#define BEGIN_CAPTURE(function, order)                                                       \
  UVMALLOC_INTERPOSE cudaError_t function(cudaStream_t stream, cudaStreamCaptureMode mode) { \
    return begin_capture(#function, device_of_stream(stream), order(stream),                 \
                         [&] { return pass_on(NEXT_OF_RUNTIME(function), stream, mode); });  \
  }
#define BEGIN_CAPTURE_TO_GRAPH(function, order)                                                   \
  UVMALLOC_INTERPOSE cudaError_t function(                                                        \
      cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* dependencies,                \
      const cudaGraphEdgeData* edges, std::size_t count, cudaStreamCaptureMode mode) {            \
    return begin_capture(#function, device_of_stream(stream), order(stream), [&] {                \
      return pass_on(NEXT_OF_RUNTIME(function), stream, graph, dependencies, edges, count, mode); \
    });                                                                                           \
  }
#define END_CAPTURE(function, order)                                                 \
  UVMALLOC_INTERPOSE cudaError_t function(cudaStream_t stream, cudaGraph_t* graph) { \
    return end_capture(                                                              \
        static_cast<cudaStream_t>(order(stream)),                                    \
        [&] { return pass_on(NEXT_OF_RUNTIME(function), stream, graph); },           \
        NEXT_OF_RUNTIME(cudaStreamIsCapturing));                                     \
  }

static uvm::StreamHandle as_it_is(cudaStream_t stream) {
  return stream;
}

BEGIN_CAPTURE(cudaStreamBeginCapture, as_it_is)
BEGIN_CAPTURE(cudaStreamBeginCapture_ptsz, per_thread)
BEGIN_CAPTURE_TO_GRAPH(cudaStreamBeginCaptureToGraph, as_it_is)
BEGIN_CAPTURE_TO_GRAPH(cudaStreamBeginCaptureToGraph_ptsz, per_thread)
END_CAPTURE(cudaStreamEndCapture, as_it_is)
END_CAPTURE(cudaStreamEndCapture_ptsz, per_thread)

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
