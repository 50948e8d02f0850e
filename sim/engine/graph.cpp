#include "sim/engine/graph.hpp"

#include <array>

namespace uvmsim {
namespace {

const char* name_of(NodeKind kind) {
  constexpr std::array<const char*, 9> kNames = {"KERNEL",     "MEMCPY",       "MEMSET",
                                                 "HOST",       "GRAPH",        "EMPTY",
                                                 "WAIT_EVENT", "EVENT_RECORD", "BATCH_MEM_OP"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

GraphNode* Graph::add(NodeKind kind, int device, NodeWork work,
                      std::vector<GraphNode*> dependencies) {
  nodes_.push_back(std::make_unique<GraphNode>(
      GraphNode{kind, device, std::move(work), std::move(dependencies), nullptr, nullptr}));
  positions_.emplace(nodes_.back().get(), nodes_.size() - 1);
  return nodes_.back().get();
}

std::unique_ptr<GraphNode> Graph::remove(const GraphNode* node) {
  const auto position = nodes_.begin() + static_cast<std::ptrdiff_t>(position_of(node));
  std::unique_ptr<GraphNode> removed = std::move(*position);
  nodes_.erase(position);
  positions_.clear();
  for (const auto& left : nodes_) {
    positions_.emplace(left.get(), positions_.size());
    std::erase(left->dependencies, removed.get());
  }
  return removed;
}

GraphNode* Graph::find_copy_of(GraphNodeHandle original) const {
  for (const auto& node : nodes_) {
    if (node->original == original) return node.get();
  }
  return nullptr;
}

GraphNode* Graph::find(GraphNodeHandle node) const {
  const auto it = positions_.find(node);
  return it == positions_.end() ? nullptr : nodes_[it->second].get();
}

const Graph* Graph::find_holder(GraphNodeHandle node) const {
  if (find(node) != nullptr) return this;
  for (const auto& each : nodes_) {
    const Graph* found = each->child != nullptr ? each->child->find_holder(node) : nullptr;
    if (found != nullptr) return found;
  }
  return nullptr;
}

std::shared_ptr<Graph> Graph::find_child(GraphHandle handle) const {
  for (const auto& node : nodes_) {
    if (node->child == nullptr) continue;
    if (node->child.get() == handle) return node->child;
    if (auto found = node->child->find_child(handle)) return found;
  }
  return nullptr;
}

std::size_t Graph::position_of(const GraphNode* node) const {
  return positions_.at(node);
}

std::vector<GraphNode*> Graph::roots() const {
  std::vector<GraphNode*> roots;
  for (const auto& node : nodes_) {
    if (node->dependencies.empty()) roots.push_back(node.get());
  }
  return roots;
}

std::vector<GraphEdge> Graph::edges() const {
  std::vector<GraphEdge> edges;
  for (const auto& node : nodes_) {
    for (GraphNode* dependency : node->dependencies) edges.push_back({dependency, node.get()});
  }
  return edges;
}

std::vector<GraphNode*> Graph::dependents_of(const GraphNode* node) const {
  std::vector<GraphNode*> dependents;
  for (const auto& [from, to] : edges()) {
    if (from == node) dependents.push_back(to);
  }
  return dependents;
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  for (const auto& node : nodes_) {
    std::vector<GraphNode*> dependencies;
    for (const GraphNode* dependency : node->dependencies)
      dependencies.push_back(copy->nodes_[position_of(dependency)].get());
    GraphNode* copied = copy->add(node->kind, node->device, node->work, std::move(dependencies));
    copied->call = node->call;
    copied->child = node->child;
    copied->original = node.get();
  }
  return copy;
}

std::string Graph::to_dot() const {
  std::string text = "digraph dot {\n";
  const auto label = [&](const GraphNode* node) {
    return "\"node_" + std::to_string(position_of(node)) + "\"";
  };
  for (const auto& node : nodes_) {
    text += label(node.get()) + " [shape=\"record\" label=\"{" + name_of(node->kind) +
            " | device " + std::to_string(node->device) + "}\"];\n";
  }
  for (const auto& [from, to] : edges()) text += label(from) + " -> " + label(to) + ";\n";
  return text + "}\n";
}

GraphExec::GraphExec(const Graph& graph, std::uint64_t flags)
    : flags_(flags), graph_(graph.clone()) {
  std::unordered_map<const GraphNode*, std::size_t> positions;
  for (const auto& node : graph.nodes()) {
    Step step{node->device, node->work, {}};
    for (const GraphNode* dependency : node->dependencies)
      step.dependencies.push_back(positions.at(dependency));
    positions.emplace(node.get(), steps_.size());
    steps_.push_back(std::move(step));
  }
}

bool GraphExec::has_form_of(const Graph& graph) const {
  const GraphExec other(graph, flags_);
  if (steps_.size() != other.steps_.size()) return false;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (graph_->nodes()[i]->kind != graph.nodes()[i]->kind ||
        steps_[i].dependencies != other.steps_[i].dependencies) {
      return false;
    }
  }
  return true;
}

}  // namespace uvmsim
