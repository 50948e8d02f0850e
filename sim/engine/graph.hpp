// Graphs: work and its order, recorded once and run many times. Each node of a graph comes after
// its dependencies; an executable graph is a copy whose order no longer changes. A node may own
// objects of the program (a kernel's closure), so graphs must be destroyed while no lock is held.
// Not thread-safe; the machine's mutex guards graphs that have a handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/engine/export.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

using StreamHandle = void*;
using GraphHandle = void*;
using GraphNodeHandle = void*;
using GraphExecHandle = void*;
struct KernelCall;
class Graph;

enum class NodeKind {
  kKernel,
  kCopy,
  kFill,
  kHostFunction,
  kChildGraph,
  kEmpty,
  kEventWait,
  kEventRecord,
  kStreamWrite,
};

// Runs a node's work at once, on a stream of the node's device.
using NodeWork = std::function<Status(int device, StreamHandle stream)>;

struct GraphNode {
  NodeKind kind;
  int device;
  NodeWork work;                           // empty: the node does nothing
  std::vector<GraphNode*> dependencies;    // without duplicates
  std::shared_ptr<const KernelCall> call;  // the call of a kernel node; null if unknown
  std::shared_ptr<Graph> child;            // the graph that the node launches
  const GraphNode* original = nullptr;     // in a clone: the node that this node copies
};

struct GraphEdge {
  GraphNode* from;
  GraphNode* to;
};

class UVMSIM_EXPORT Graph {
 public:
  // `dependencies` are nodes of this graph.
  GraphNode* add(NodeKind kind, int device, NodeWork work, std::vector<GraphNode*> dependencies);

  const std::vector<std::unique_ptr<GraphNode>>& nodes() const { return nodes_; }

  // Removes a node of this graph, with its edges, and returns the node.
  std::unique_ptr<GraphNode> remove(const GraphNode* node);

  // Returns null if the handle is not a node of this graph.
  GraphNode* find(GraphNodeHandle node) const;
  // Returns the copy of that node in this graph, a clone, or null.
  GraphNode* find_copy_of(GraphNodeHandle original) const;
  // Returns the graph that contains the node: this graph or a child at any depth. Returns null if
  // no graph does.
  const Graph* find_holder(GraphNodeHandle node) const;
  // Returns the child graph with that handle, at any depth, or null.
  std::shared_ptr<Graph> find_child(GraphHandle handle) const;

  std::vector<GraphNode*> roots() const;
  std::vector<GraphNode*> dependents_of(const GraphNode* node) const;
  std::vector<GraphEdge> edges() const;

  std::shared_ptr<Graph> clone() const;

  // Returns the graph in Graphviz's language.
  std::string to_dot() const;

  // The node must be in this graph.
  std::size_t position_of(const GraphNode* node) const;

 private:
  std::vector<std::unique_ptr<GraphNode>> nodes_;
  std::unordered_map<const void*, std::size_t> positions_;
};

class GraphExec {
 public:
  struct Step {
    int device;
    NodeWork work;
    std::vector<std::size_t> dependencies;  // earlier steps
  };

  GraphExec(const Graph& graph, std::uint64_t flags);

  const std::vector<Step>& steps() const { return steps_; }
  std::uint64_t flags() const { return flags_; }
  // Returns whether `graph` has nodes of the same kinds with the same dependencies.
  bool has_form_of(const Graph& graph) const;
  // Replaces the work of the step at that position. Returns the old work.
  NodeWork exchange_work(std::size_t position, NodeWork work) {
    return std::exchange(steps_[position].work, std::move(work));
  }
  // A copy of the original graph.
  const std::shared_ptr<Graph>& graph() const { return graph_; }

  // The time at which the last launch ends. The next launch, on any stream, starts after this time.
  std::uint64_t busy_until_ns = 0;

 private:
  std::vector<Step> steps_;
  std::uint64_t flags_;
  std::shared_ptr<Graph> graph_;
};

}  // namespace uvmsim
