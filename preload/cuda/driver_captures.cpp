// Captures of streams by CUDA's driver, passed on after they have been noted.
#include "preload/captures.hpp"
#include "preload/cuda/driver.hpp"

using namespace uvm::preload;
using namespace uvm::preload::cuda;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

// The form of CUDA 10.0 has no mode.
#undef cuStreamBeginCapture
#define BEGIN_GLOBAL_CAPTURE(function, order)                                          \
  UVMALLOC_INTERPOSE CUresult function(CUstream stream) {                              \
    return begin_capture(#function, device_of_stream_by_driver(stream), order(stream), \
                         [&] { return pass_on(NEXT_OF_DRIVER(function), stream); });   \
  }
// `order`: the stream as its own name says which default stream it is.
#define BEGIN_CAPTURE(function, order)                                                     \
  UVMALLOC_INTERPOSE CUresult function(CUstream stream, CUstreamCaptureMode mode) {        \
    return begin_capture(#function, device_of_stream_by_driver(stream), order(stream),     \
                         [&] { return pass_on(NEXT_OF_DRIVER(function), stream, mode); }); \
  }
#define BEGIN_CAPTURE_TO_GRAPH(function, order)                                                  \
  UVMALLOC_INTERPOSE CUresult function(                                                          \
      CUstream stream, CUgraph graph, const CUgraphNode* dependencies,                           \
      const CUgraphEdgeData* edges, std::size_t count, CUstreamCaptureMode mode) {               \
    return begin_capture(#function, device_of_stream_by_driver(stream), order(stream), [&] {     \
      return pass_on(NEXT_OF_DRIVER(function), stream, graph, dependencies, edges, count, mode); \
    });                                                                                          \
  }
#define END_CAPTURE(function, order)                                      \
  UVMALLOC_INTERPOSE CUresult function(CUstream stream, CUgraph* graph) { \
    return end_capture(                                                   \
        static_cast<CUstream>(order(stream)),                             \
        [&] { return pass_on(NEXT_OF_DRIVER(function), stream, graph); }, \
        NEXT_OF_DRIVER(cuStreamIsCapturing));                             \
  }

static uvm::StreamHandle as_it_is(CUstream stream) {
  return stream;
}

BEGIN_GLOBAL_CAPTURE(cuStreamBeginCapture, as_it_is)
BEGIN_GLOBAL_CAPTURE(cuStreamBeginCapture_ptsz, per_thread)
BEGIN_CAPTURE(cuStreamBeginCapture_v2, as_it_is)
BEGIN_CAPTURE(cuStreamBeginCapture_v2_ptsz, per_thread)
BEGIN_CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph, as_it_is)
BEGIN_CAPTURE_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz, per_thread)
END_CAPTURE(cuStreamEndCapture, as_it_is)
END_CAPTURE(cuStreamEndCapture_ptsz, per_thread)

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
