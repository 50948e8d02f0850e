// Stream capture and graphs in terms that the interfaces of CUDA and HIP share: their handles are
// the same pointers and their enumerations have the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sim/engine/kernel_call.hpp"
#include "sim/engine/machine.hpp"

namespace uvmsim::api {

// The interfaces' handles are pointers to undeclared types.
template <class Handle>
void** out_of(Handle* handle) {
  return reinterpret_cast<void**>(handle);
}
template <class Handle>
void* const* list_of(Handle const* handles) {
  return reinterpret_cast<void* const*>(handles);
}

// `mode` is a number of the interfaces. Returns kInvalidValue if there is no such mode.
Status begin_capture(int device, StreamHandle stream, int mode);
// Sets the calling thread's mode to `*mode`, and `*mode` to the previous mode.
Status exchange_capture_mode(int* mode);
// Writes 0 for none, 1 for active, 2 for invalidated.
Status capture_status(int device, StreamHandle stream, int* out);

// All pointers except `status` may be null. All edges have the default kind, for which the
// interfaces return no data.
struct CaptureInfoOut {
  int* status;
  unsigned long long* id = nullptr;
  GraphHandle* graph = nullptr;
  const GraphNodeHandle** dependencies = nullptr;
  std::size_t* count = nullptr;
};
Status capture_info(int device, StreamHandle stream, const CaptureInfoOut& out);

// `flags`: 0 adds to the stream's dependencies, 1 replaces them.
Status update_capture_dependencies(int device, StreamHandle stream, const GraphNodeHandle* nodes,
                                   std::size_t count, unsigned flags);

// Makes an event. Returns kInvalidValue for flags that are not in `accepted`, and for an
// interprocess event with timing.
Status create_event(int device, unsigned flags, unsigned accepted, EventHandle* out);
Status elapsed(EventHandle from, EventHandle to, float* out_ms);
Status check_event_flags(unsigned flags, EventScope* out);

// These calls return lists in the way of the interfaces. Without an array, they set `*count` to the
// length. With an array, at most `*count` entries are written, and the rest of the array is
// cleared.
Status graph_nodes(GraphHandle graph, GraphNodeHandle* out, std::size_t* count);
Status graph_root_nodes(GraphHandle graph, GraphNodeHandle* out, std::size_t* count);
Status graph_edges(GraphHandle graph, GraphNodeHandle* from, GraphNodeHandle* to, void* edge_data,
                   std::size_t* count);
Status node_dependencies(GraphNodeHandle node, GraphNodeHandle* out, void* edge_data,
                         std::size_t* count);
Status node_dependents(GraphNodeHandle node, GraphNodeHandle* out, void* edge_data,
                       std::size_t* count);
Status node_type(GraphNodeHandle node, int* out);
// Gets how the program launched the kernel of a node. Returns kInvalidValue if the node is not a
// kernel, kNotSupported if the launch is not known.
Status kernel_call(GraphNodeHandle node, std::shared_ptr<const KernelCall>* out);
// Gets the graph that a node launches; the node owns that graph.
Status child_graph(GraphNodeHandle node, GraphHandle* out);

// Overwrites the file with the graph in Graphviz's language.
Status print_graph(GraphHandle graph, const char* path);

Status create_graph(GraphHandle* out, unsigned flags);
Status clone_graph(GraphHandle graph, GraphHandle* out);
// Adds a node that calls `function(argument)`, or an empty node if `function` is null.
using HostCallback = void (*)(void* argument);
Status add_node(GraphHandle graph, int device, const GraphNodeHandle* dependencies,
                std::size_t count, HostCallback function, void* argument, GraphNodeHandle* out);
// Returns kNotSupported if the flags request launches by a device.
Status instantiate_graph(GraphHandle graph, unsigned long long flags, GraphExecHandle* out);
// On failure `*out` does not change. Returns kInvalidValue if `out` is null.
Status graph_exec_flags(GraphExecHandle exec, unsigned long long* out);
Status upload_graph(int device, StreamHandle stream, GraphExecHandle exec);

}  // namespace uvmsim::api
