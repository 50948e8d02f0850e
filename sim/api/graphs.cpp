#include "sim/api/graphs.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "sim/engine/thread_context.hpp"

namespace uvmsim::api {
namespace {

Machine& machine() {
  return Machine::instance();
}

bool is_mode(int mode) {
  return mode >= static_cast<int>(CaptureMode::kGlobal) &&
         mode <= static_cast<int>(CaptureMode::kRelaxed);
}
static_assert(static_cast<int>(CaptureMode::kGlobal) == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(static_cast<int>(CaptureMode::kThreadLocal) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(static_cast<int>(CaptureMode::kRelaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(static_cast<int>(CaptureState::kActive) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(static_cast<int>(CaptureState::kInvalidated) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);

int type_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kKernel:
      return CU_GRAPH_NODE_TYPE_KERNEL;
    case NodeKind::kCopy:
      return CU_GRAPH_NODE_TYPE_MEMCPY;
    case NodeKind::kFill:
      return CU_GRAPH_NODE_TYPE_MEMSET;
    case NodeKind::kHostFunction:
      return CU_GRAPH_NODE_TYPE_HOST;
    case NodeKind::kChildGraph:
      return CU_GRAPH_NODE_TYPE_GRAPH;
    case NodeKind::kEmpty:
      return CU_GRAPH_NODE_TYPE_EMPTY;
    case NodeKind::kEventWait:
      return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case NodeKind::kEventRecord:
      return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case NodeKind::kStreamWrite:
      return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  }
  return -1;
}

// Writes `entry(i)` for each existing entry, and clears the rest of the caller's array.
template <class Value, class Entry>
void give(Value* out, std::size_t asked, std::size_t there, Entry entry) {
  if (out == nullptr) return;
  for (std::size_t i = 0; i < asked; ++i) out[i] = i < there ? Value(entry(i)) : Value{};
}

Status give_nodes(const std::vector<GraphNode*>& nodes, GraphNodeHandle* out, void* edge_data,
                  std::size_t* count) {
  if (out != nullptr) {
    give(out, *count, nodes.size(), [&](std::size_t i) { return nodes[i]; });
    give(static_cast<CUgraphEdgeData*>(edge_data), *count, 0,
         [](std::size_t) { return CUgraphEdgeData{}; });
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return Status::kOk;
}

}  // namespace

// ---- capture

Status begin_capture(int device, StreamHandle stream, int mode) {
  if (!is_mode(mode)) return Status::kInvalidValue;
  return machine().graphs().begin_capture(device, stream, static_cast<CaptureMode>(mode));
}

Status exchange_capture_mode(int* mode) {
  if (mode == nullptr || !is_mode(*mode)) return Status::kInvalidValue;
  CaptureMode& own = ThreadContext::current().capture_mode;
  const auto wanted = static_cast<CaptureMode>(*mode);
  *mode = static_cast<int>(std::exchange(own, wanted));
  return Status::kOk;
}

Status capture_status(int device, StreamHandle stream, int* out) {
  return capture_info(device, stream, {.status = out});
}

Status capture_info(int device, StreamHandle stream, const CaptureInfoOut& out) {
  if (out.status == nullptr) return Status::kInvalidValue;
  CaptureInfo info;
  const Status status = machine().graphs().capture_info(device, stream, &info);
  if (status != Status::kOk) return status;
  *out.status = static_cast<int>(info.state);
  if (out.id != nullptr) *out.id = info.id;
  if (out.graph != nullptr) *out.graph = info.graph;
  if (out.dependencies != nullptr)
    *out.dependencies = reinterpret_cast<const GraphNodeHandle*>(info.dependencies);
  if (out.count != nullptr) *out.count = info.dependency_count;
  return Status::kOk;
}

Status update_capture_dependencies(int device, StreamHandle stream, const GraphNodeHandle* nodes,
                                   std::size_t count, unsigned flags) {
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (nodes == nullptr && count != 0))
    return Status::kInvalidValue;
  return machine().graphs().update_capture_dependencies(device, stream, {nodes, nodes + count},
                                                        flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES
                                                            ? DependencyUpdate::kSet
                                                            : DependencyUpdate::kAdd);
}

Status create_event(int device, unsigned flags, unsigned accepted, EventHandle* out) {
  const bool timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  if (out == nullptr || (flags & ~accepted) != 0) return Status::kInvalidValue;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && timing) return Status::kInvalidValue;
  *out = machine().streams().create_event(device, flags, timing);
  return Status::kOk;
}

Status elapsed(EventHandle from, EventHandle to, float* out_ms) {
  constexpr double kNsPerMs = 1e6;
  if (out_ms == nullptr) return Status::kInvalidValue;
  std::int64_t ns = 0;
  const Status status = machine().streams().elapsed(from, to, &ns);
  if (status == Status::kOk) *out_ms = static_cast<float>(static_cast<double>(ns) / kNsPerMs);
  return status;
}

Status check_event_flags(unsigned flags, EventScope* out) {
  static_assert(int{CU_EVENT_RECORD_EXTERNAL} == int{CU_EVENT_WAIT_EXTERNAL});
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return Status::kInvalidValue;
  *out = flags != 0 ? EventScope::kExternal : EventScope::kInternal;
  return Status::kOk;
}

// ---- what a graph holds

Status graph_nodes(GraphHandle graph, GraphNodeHandle* out, std::size_t* count) {
  if (count == nullptr) return Status::kInvalidValue;
  return machine().graphs().visit(graph, [&](const Graph& found) {
    std::vector<GraphNode*> nodes;
    for (const auto& node : found.nodes()) nodes.push_back(node.get());
    give_nodes(nodes, out, nullptr, count);
  });
}

Status graph_root_nodes(GraphHandle graph, GraphNodeHandle* out, std::size_t* count) {
  if (count == nullptr) return Status::kInvalidValue;
  return machine().graphs().visit(
      graph, [&](const Graph& found) { give_nodes(found.roots(), out, nullptr, count); });
}

Status graph_edges(GraphHandle graph, GraphNodeHandle* from, GraphNodeHandle* to, void* edge_data,
                   std::size_t* count) {
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return Status::kInvalidValue;
  return machine().graphs().visit(graph, [&](const Graph& found) {
    std::vector<GraphNode*> sources;
    std::vector<GraphNode*> targets;
    for (const GraphEdge& edge : found.edges()) {
      sources.push_back(edge.from);
      targets.push_back(edge.to);
    }
    std::size_t targets_count = *count;
    give_nodes(sources, from, edge_data, count);
    give_nodes(targets, to, nullptr, &targets_count);
  });
}

Status node_dependencies(GraphNodeHandle node, GraphNodeHandle* out, void* edge_data,
                         std::size_t* count) {
  if (count == nullptr) return Status::kInvalidValue;
  return machine().graphs().visit_node(node, [&](const Graph&, const GraphNode& found) {
    give_nodes(found.dependencies, out, edge_data, count);
  });
}

Status node_dependents(GraphNodeHandle node, GraphNodeHandle* out, void* edge_data,
                       std::size_t* count) {
  if (count == nullptr) return Status::kInvalidValue;
  return machine().graphs().visit_node(node, [&](const Graph& graph, const GraphNode& found) {
    give_nodes(graph.dependents_of(&found), out, edge_data, count);
  });
}

Status node_type(GraphNodeHandle node, int* out) {
  if (out == nullptr) return Status::kInvalidValue;
  return machine().graphs().visit_node(
      node, [&](const Graph&, const GraphNode& found) { *out = type_of(found.kind); });
}

Status kernel_call(GraphNodeHandle node, std::shared_ptr<const KernelCall>* out) {
  bool is_kernel = false;
  const Status status =
      machine().graphs().visit_node(node, [&](const Graph&, const GraphNode& found) {
        is_kernel = found.kind == NodeKind::kKernel;
        *out = found.call;
      });
  if (status != Status::kOk || !is_kernel) return Status::kInvalidValue;
  return *out != nullptr ? Status::kOk : Status::kNotSupported;
}

Status child_graph(GraphNodeHandle node, GraphHandle* out) {
  if (out == nullptr) return Status::kInvalidValue;
  GraphHandle child = nullptr;
  machine().graphs().visit_node(
      node, [&](const Graph&, const GraphNode& found) { child = found.child.get(); });
  if (child == nullptr) return Status::kInvalidValue;
  *out = child;
  return Status::kOk;
}

Status print_graph(GraphHandle graph, const char* path) {
  if (path == nullptr) return Status::kInvalidValue;
  std::string text;
  const Status status =
      machine().graphs().visit(graph, [&](const Graph& found) { text = found.to_dot(); });
  if (status != Status::kOk) return status;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return Status::kOperatingSystem;
  const bool written = std::fputs(text.c_str(), file) >= 0;
  return std::fclose(file) == 0 && written ? Status::kOk : Status::kOperatingSystem;
}

// ---- creating graphs and executable graphs

Status create_graph(GraphHandle* out, unsigned flags) {
  if (out == nullptr || flags != 0) return Status::kInvalidValue;
  *out = machine().graphs().create();
  return Status::kOk;
}

Status clone_graph(GraphHandle graph, GraphHandle* out) {
  return out == nullptr ? Status::kInvalidValue : machine().graphs().clone(graph, out);
}

Status add_node(GraphHandle graph, int device, const GraphNodeHandle* dependencies,
                std::size_t count, HostCallback function, void* argument, GraphNodeHandle* out) {
  if (out == nullptr || (dependencies == nullptr && count != 0)) return Status::kInvalidValue;
  NodeWork work;
  if (function != nullptr) {
    work = [function, argument](int, StreamHandle) {
      function(argument);
      return Status::kOk;
    };
  }
  return machine().graphs().add_node(
      graph, function != nullptr ? NodeKind::kHostFunction : NodeKind::kEmpty, device,
      std::move(work), {dependencies, dependencies + count}, out);
}

Status instantiate_graph(GraphHandle graph, unsigned long long flags, GraphExecHandle* out) {
  constexpr unsigned long long kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (out == nullptr || (flags & ~kKnown) != 0) return Status::kInvalidValue;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) return Status::kNotSupported;
  return machine().graphs().instantiate(graph, flags, out);
}

Status graph_exec_flags(GraphExecHandle exec, unsigned long long* out) {
  if (out == nullptr) return Status::kInvalidValue;
  std::uint64_t flags = 0;
  const Status status = machine().graphs().exec_flags(exec, &flags);
  if (status == Status::kOk) *out = flags;
  return status;
}

// No upload is needed, so this call only checks the handles.
Status upload_graph(int device, StreamHandle stream, GraphExecHandle exec) {
  unsigned long long flags = 0;
  const Status status = graph_exec_flags(exec, &flags);
  if (status != Status::kOk) return status;
  return machine().graphs().refuse_capture(device, stream);
}

}  // namespace uvmsim::api
