// Stores for each executable graph, by its handle, what its kernels use, and the parts of graphs
// that were divided. Thread-safe; independent of the vendor.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "preload/graph_parts.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload {

class GraphUses {
 public:
  struct Node {
    const void* handle = nullptr;  // the node in the graph that was instantiated
    Words words;                   // of its kernel, or of all kernels of its child graph
  };
  using Nodes = std::vector<Node>;
  struct Known {
    std::shared_ptr<const Uses> uses;   // of all nodes; nullptr if there are none
    std::shared_ptr<GraphParts> parts;  // nullptr if the graph was never divided
  };

  static GraphUses& instance();
  // Returns the words of all these nodes, each once, in node order.
  static Words joined(const Nodes& nodes);

  // Call after the graph was instantiated, or updated as a whole. `parts` may be nullptr.
  void set(const void* executable, Nodes nodes, std::shared_ptr<GraphParts> parts = nullptr);
  // The same for a graph whose uses a framework has reported.
  void set(const void* executable, Uses uses, std::shared_ptr<GraphParts> parts);
  // Call after one node of the graph got new arguments. Does nothing for an unknown graph.
  void set_node(const void* executable, Node node);
  // Call after any change of the graph: its parts do not have the change.
  void drop_parts(const void* executable) noexcept;
  void forget(const void* executable) noexcept;

  // Returns whether any graph was ever divided. One relaxed load.
  bool has_parts() const noexcept { return has_parts_.load(std::memory_order_relaxed); }
  // Returns empty pointers for an unknown graph.
  Known find(const void* executable) const noexcept;

 private:
  struct Graph {
    Nodes nodes;  // none if a framework has reported the uses
    Known known;
  };
  void set(const void* executable, Graph graph);

  mutable std::mutex mutex_;  // guards the map
  std::unordered_map<const void*, Graph> graphs_;
  std::atomic<bool> has_parts_ = false;
};

}  // namespace uvm::preload
