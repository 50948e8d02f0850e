// Stores for each executable graph, by its handle, the words (values that may be addresses) in its
// kernels' arguments. Each launch checks again which words point into uvmalloc's memory, because
// blocks change between launches. Thread-safe; independent of the vendor.
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

  // Call after the graph was instantiated, or updated as a whole.
  void set(const void* executable, Nodes nodes);
  // Call after one node of the graph got new arguments. Does nothing for an unknown graph.
  void set_node(const void* executable, Node node);
  void forget(const void* executable) noexcept;

  // Returns the words of all nodes, each once, in node order; nullptr if there are no words.
  std::shared_ptr<const Words> words_of(const void* executable) const;

 private:
  struct Graph {
    Nodes nodes;
    std::shared_ptr<const Words> words;
  };
  static std::shared_ptr<const Words> joined(const Nodes& nodes);

  mutable std::mutex mutex_;  // guards the map
  std::unordered_map<const void*, Graph> graphs_;
};

}  // namespace uvm::preload
