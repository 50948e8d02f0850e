// The arguments of the kernels in executable graphs, by the graph's handle. Each launch decides
// again which words point into our memory, because blocks change between launches. Thread-safe;
// independent of the vendor.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "preload/memory_uses.hpp"

namespace uvm::preload {

class GraphUses {
 public:
  struct Node {
    const void* handle = nullptr;  // the node in the graph that was instantiated
    Words words;                   // of its kernel, or of all kernels of its child graph
  };
  using Nodes = std::vector<Node>;

  static GraphUses& instance();

  // The graph was instantiated, or updated as a whole.
  void set(const void* executable, Nodes nodes);
  // One node of the graph has new arguments. Does nothing for an unknown graph.
  void set_node(const void* executable, Node node);
  void forget(const void* executable) noexcept;

  // The words of all nodes, each once, in node order. Null if the graph is unknown or has none.
  std::shared_ptr<const Words> words_of(const void* executable) const;

 private:
  struct Graph {
    Nodes nodes;
    std::shared_ptr<const Words> words;
  };
  static std::shared_ptr<const Words> joined(const Nodes& nodes);

  mutable std::mutex mutex_;  // guards the member below
  std::unordered_map<const void*, Graph> graphs_;
};

}  // namespace uvm::preload
