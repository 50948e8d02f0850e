// Graphs: work and its order, recorded once and run many times. A graph's nodes lie in an order in
// which each comes after what it depends on; an executable graph is a copy of them that changes no
// more. What a node holds may belong to the program (a kernel's closure): graphs must be destroyed
// where no lock is held. Not thread-safe; the machine's mutex guards graphs that are reachable by
// a handle.
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

class Machine;
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

// Does a node's work on a stream of its device, at once.
using NodeWork = std::function<Status(Machine& machine, int device, StreamHandle stream)>;

struct GraphNode {
  NodeKind kind;
  int device;
  NodeWork work;                           // none: nothing to do
  std::vector<GraphNode*> dependencies;    // each once
  std::shared_ptr<const KernelCall> call;  // of a kernel; null: not known
  std::shared_ptr<Graph> child;            // of another graph's launch
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

  // Null where the handle is no node of this graph.
  GraphNode* find(GraphNodeHandle node) const;
  // This graph or the one below it that has the node; else null.
  const Graph* find_holder(GraphNodeHandle node) const;
  // The graph below this one, at any depth, that has the handle; else null.
  std::shared_ptr<Graph> find_child(GraphHandle handle) const;

  std::vector<GraphNode*> roots() const;
  std::vector<GraphNode*> dependents_of(const GraphNode* node) const;
  std::vector<GraphEdge> edges() const;

  std::shared_ptr<Graph> clone() const;

  // In Graphviz's language.
  std::string to_dot() const;

  // Of a node of this graph.
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
  // Whether that graph has nodes of the same kinds with the same dependencies.
  bool has_form_of(const Graph& graph) const;
  // The step of the node at that position does other work from now on. Gives back the old work.
  NodeWork exchange_work(std::size_t position, NodeWork work) {
    return std::exchange(steps_[position].work, std::move(work));
  }
  // A copy of the graph as it was.
  const std::shared_ptr<Graph>& graph() const { return graph_; }

  // When its last launch ends: the next one comes after it, on whichever stream.
  std::uint64_t busy_until_ns = 0;

 private:
  std::vector<Step> steps_;
  std::uint64_t flags_;
  std::shared_ptr<Graph> graph_;
};

}  // namespace uvmsim
