// Records which memory the operators of a framework use while a graph of CUDA is captured: the
// launches of the graph run no operator. Thread-safe.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include <uvmalloc/use_range.hpp>
#include "preload/memory_uses.hpp"

namespace uvm::preload::cuda {

class CapturedOperators {
 public:
  struct Operator {
    std::vector<CUgraphNode> tips;  // the nodes on which the stream's next node depends
    std::vector<live::UseRange> ranges;
    bool has_run = false;  // the operator's last nodes are among the tips and use these ranges
  };
  struct Capture {
    int device = 0;
    std::vector<Operator> operators;

    // Returns what all operators use.
    Uses all() const;
    // Returns what each of the nodes uses. The nodes are in the order of their dependencies. A
    // node belongs to the operators that began right before it, or before the nodes before it. An
    // operator's results belong to its last node.
    std::vector<Uses> by_node(const std::vector<CUgraphNode>& nodes) const;
  };

  static CapturedOperators& instance();

  // Call before the operator adds its kernels to the graph that `stream` captures, and when it has
  // run.
  void add(int device, CUstream stream, std::span<const live::UseRange> ranges, bool has_run);
  // Returns the operators that were captured into the graph, or nullptr.
  std::shared_ptr<const Capture> find(CUgraph graph);
  // Call when the graph is destroyed.
  void forget(CUgraph graph);

 private:
  struct Entry {
    cuuint64_t id = 0;  // of the capture, because a handle may name another graph later
    std::shared_ptr<Capture> capture;
  };
  std::mutex mutex_;
  std::unordered_map<CUgraph, Entry> captures_;
};

}  // namespace uvm::preload::cuda
