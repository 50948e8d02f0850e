#include "preload/graph_uses.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace uvm::preload {

GraphUses& GraphUses::instance() {
  static auto* const graphs = new GraphUses;
  return *graphs;
}

std::shared_ptr<const Words> GraphUses::joined(const Nodes& nodes) {
  Words all;
  std::unordered_set<std::uintptr_t> known;
  for (const Node& node : nodes) {
    for (const std::uintptr_t word : node.words) {
      if (known.insert(word).second) all.push_back(word);
    }
  }
  return all.empty() ? nullptr : std::make_shared<const Words>(std::move(all));
}

void GraphUses::set(const void* executable, Nodes nodes) {
  Graph made{.nodes = std::move(nodes), .words = nullptr};
  made.words = joined(made.nodes);
  const std::lock_guard lock(mutex_);
  graphs_.insert_or_assign(executable, std::move(made));
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
  found->second.words = joined(nodes);
}

void GraphUses::forget(const void* executable) noexcept {
  const std::lock_guard lock(mutex_);
  graphs_.erase(executable);
}

std::shared_ptr<const Words> GraphUses::words_of(const void* executable) const {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(executable);
  return found != graphs_.end() ? found->second.words : nullptr;
}

}  // namespace uvm::preload
