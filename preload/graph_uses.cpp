#include "preload/graph_uses.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace uvm::preload {
namespace {

std::shared_ptr<const Uses> shared_uses(Uses uses) {
  return uses.empty() ? nullptr : std::make_shared<const Uses>(std::move(uses));
}

}  // namespace

GraphUses& GraphUses::instance() {
  static auto* const graphs = new GraphUses;
  return *graphs;
}

Words GraphUses::joined(const Nodes& nodes) {
  Words all;
  std::unordered_set<std::uintptr_t> known;
  for (const Node& node : nodes) {
    for (const std::uintptr_t word : node.words) {
      if (known.insert(word).second) all.push_back(word);
    }
  }
  return all;
}

void GraphUses::set(const void* executable, Nodes nodes, std::shared_ptr<GraphParts> parts) {
  auto uses = shared_uses({.words = joined(nodes), .ranges = {}});
  set(executable, Graph{std::move(nodes), {std::move(uses), std::move(parts)}});
}

void GraphUses::set(const void* executable, Uses uses, std::shared_ptr<GraphParts> parts) {
  set(executable, Graph{{}, {shared_uses(std::move(uses)), std::move(parts)}});
}

void GraphUses::set(const void* executable, Graph graph) {
  if (graph.known.parts != nullptr) has_parts_.store(true, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  Graph& known = graphs_[executable];
  // If an update has dropped the parts, they still order the launches.
  if (graph.known.parts == nullptr) graph.known.parts = known.known.parts;
  std::swap(known, graph);
}

void GraphUses::set_node(const void* executable, Node node) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(executable);
  if (found == graphs_.end()) return;
  Nodes& nodes = found->second.nodes;
  const auto known = std::ranges::find(nodes, node.handle, &Node::handle);
  if (known != nodes.end()) {
    *known = std::move(node);
  } else {
    nodes.push_back(std::move(node));
  }
  found->second.known.uses = shared_uses({.words = joined(nodes), .ranges = {}});
}

void GraphUses::drop_parts(const void* executable) noexcept {
  if (!has_parts()) return;
  if (const auto parts = find(executable).parts) parts->drop();
}

void GraphUses::forget(const void* executable) noexcept {
  decltype(graphs_)::node_type gone;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  gone = graphs_.extract(executable);
}

GraphUses::Known GraphUses::find(const void* executable) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(executable);
  return found != graphs_.end() ? found->second.known : Known();
}

}  // namespace uvm::preload
