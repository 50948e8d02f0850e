// The machine's captures of streams into graphs, and its graphs and executable graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/engine/export.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/streams.hpp"

namespace uvmsim {

// The graph calls return kInvalidValue for an invalid handle. So do the calls that need a finished
// graph if a capture still records it.
class UVMSIM_EXPORT Graphs {
 public:
  Graphs(SharedState& shared, Streams& streams) : shared_(shared), streams_(streams) {}

  Status begin_capture(int device, StreamHandle stream, CaptureMode mode);
  // `*out` is null if the capture failed; see Captures::end().
  Status end_capture(int device, StreamHandle stream, GraphHandle* out);
  Status capture_info(int device, StreamHandle stream, CaptureInfo* out);
  Status update_capture_dependencies(int device, StreamHandle stream,
                                     const std::vector<GraphNodeHandle>& nodes,
                                     DependencyUpdate update);
  // For calls that an interface refuses during any capture that is not relaxed, independently of
  // the thread's mode. The thread's mode decides whether the captures are invalidated.
  Status refuse_beside_captures();
  // For calls that an interface refuses depending on the modes of the thread and of the captures.
  Status admit_unsafe_call();
  // For work that graphs do not support: returns kOk if the stream is not being captured.
  Status refuse_capture(int device, StreamHandle stream);

  GraphHandle create();
  Status clone(GraphHandle graph, GraphHandle* out);
  Status destroy(GraphHandle graph);
  // `dependencies` are nodes of the graph, without duplicates.
  Status add_node(GraphHandle graph, NodeKind kind, int device, NodeWork work,
                  const std::vector<GraphNodeHandle>& dependencies, GraphNodeHandle* out);
  // Also returns kInvalidValue for a node of a child graph.
  Status destroy_node(GraphNodeHandle node);
  Status find_in_clone(GraphNodeHandle original, GraphHandle clone, GraphNodeHandle* out);
  // Calls `visit` with the lock held, so `visit` must not call the machine.
  Status visit(GraphHandle graph, const std::function<void(const Graph&)>& visit);
  Status visit_node(GraphNodeHandle node,
                    const std::function<void(const Graph&, const GraphNode&)>& visit);

  Status instantiate(GraphHandle graph, std::uint64_t flags, GraphExecHandle* out);
  Status destroy_exec(GraphExecHandle exec);
  // Replaces the work of the executable graph by the work of `graph`. Returns kIllegalState if the
  // two graphs differ in kinds or dependencies of nodes.
  Status update_exec(GraphExecHandle exec, GraphHandle graph);
  // Replaces the work of a kernel node by the work of the only node of the graph `kernel`.
  Status set_exec_kernel(GraphExecHandle exec, GraphNodeHandle node, GraphHandle kernel);
  Status exec_flags(GraphExecHandle exec, std::uint64_t* out);
  // The nodes' work takes effect before the call returns; the launch stops at the first failure.
  Status launch(int device, StreamHandle stream, GraphExecHandle exec);

 private:
  Status run(int device, StreamHandle stream, GraphExec& exec);
  Status run_step(const GraphExec::Step& step, StreamHandle lane, std::uint64_t* time_ns);

  SharedState& shared_;
  Streams& streams_;
};

}  // namespace uvmsim
