// What the kernels of executable graphs get as arguments, by the handle of the graph. Whether a
// word points into memory of ours is decided at each launch, because memory is freed and allocated
// between launches. Thread-safe. Knows no vendor.
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
    const void* handle = nullptr;  // of the graph that was instantiated
    Words words;                   // of its kernel, or of all kernels of the graph that it launches
  };
  using Nodes = std::vector<Node>;

  static GraphUses& instance();

  // A graph was instantiated, or replaced as a whole.
  void set(const void* executable, Nodes nodes);
  // One node of it has other arguments from now on. Does nothing for an unknown graph.
  void set_node(const void* executable, Node node);
  void forget(const void* executable) noexcept;

  // The words of all nodes, each once, in the order of the nodes. Null for an unknown graph, and
  // for one without words.
  std::shared_ptr<const Words> words_of(const void* executable) const;

 private:
  struct Graph {
    Nodes nodes;
    std::shared_ptr<const Words> words;
  };
  static std::shared_ptr<const Words> joined(const Nodes& nodes);

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<const void*, Graph> graphs_;
};

}  // namespace uvm::preload
