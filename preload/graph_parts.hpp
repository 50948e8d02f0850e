// An executable graph in parts that run one after another. Memory can move between the parts, which
// it cannot inside a graph. Independent of the vendor.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/use_range.hpp>
#include "preload/memory_uses.hpp"

namespace uvm::preload {

// A dependency: node `to` runs after node `from`.
struct NodeOrder {
  std::size_t from;
  std::size_t to;
};

// Divides the nodes 0 to `count` - 1 of a graph into as many pieces as possible so that every node
// of a piece comes, by its dependencies, after all nodes of the earlier pieces.
std::vector<std::vector<std::size_t>> pieces_of(std::size_t count,
                                                std::span<const NodeOrder> dependencies);

// Joins neighbouring pieces while a joined piece uses at most `most_bytes`. ranges_of(node) returns
// the ranges that a node uses.
std::vector<std::vector<std::size_t>> joined_pieces(
    std::span<const std::vector<std::size_t>> pieces, std::size_t most_bytes,
    const std::function<std::vector<live::UseRange>(std::size_t node)>& ranges_of);

// The parts of one executable graph, and the order of its launches: a launch starts after the last
// launch, as the driver promises for an executable graph. Thread-safe.
class GraphParts {
 public:
  struct Part {
    void* executable = nullptr;
    Uses uses;
  };
  explicit GraphParts(void (*destroy)(void* executable)) : destroy_(destroy) {}
  ~GraphParts();
  GraphParts(const GraphParts&) = delete;
  GraphParts& operator=(const GraphParts&) = delete;

  // Adds the next part. Takes over the executable, and destroys it with `destroy`.
  void add(Part part);

  // Calls launch(parts), which launches these parts in their order, or the whole graph if there are
  // none, on that stream. Returns the result of launch().
  template <class Launch>
  auto in_order(int device, StreamHandle stream, Launch launch) {
    const std::lock_guard lock(mutex_);
    wait_for_last_launch(device, stream);
    const auto result = launch(parts_);
    note_launch(device, stream);
    return result;
  }
  // Destroys the parts, because the graph has changed. Later launches are still ordered.
  void drop() noexcept;

 private:
  void wait_for_last_launch(int device, StreamHandle stream) noexcept;
  void note_launch(int device, StreamHandle stream) noexcept;

  std::mutex mutex_;  // guards all; held during a launch
  std::vector<Part> parts_;
  void (*const destroy_)(void* executable);
  int device_ = -1;  // of the last launch
  StreamHandle stream_ = nullptr;
  EventHandle launched_ = nullptr;  // recorded after the last launch
};

}  // namespace uvm::preload
