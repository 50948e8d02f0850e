// Handlers of the calls that make, change and launch executable graphs, for both interfaces of
// CUDA. The handlers report the memory that the graphs' kernels use, and launch large graphs in
// parts while memory is short. No function throws.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "preload/cuda/captured_operators.hpp"
#include "preload/cuda/divide_graph.hpp"
#include "preload/cuda/driver.hpp"
#include "preload/cuda/kernel_words.hpp"
#include "preload/define_calls.hpp"
#include "preload/graph_uses.hpp"
#include "preload/interpose.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload::cuda {

// Returns the words of each of the nodes in that order; a node that is no kernel has none.
inline std::vector<Uses> words_of_nodes(const GraphUses::Nodes& nodes,
                                        const std::vector<CUgraphNode>& in_order) {
  std::unordered_map<const void*, const Words*> words;
  for (const GraphUses::Node& node : nodes) words.emplace(node.handle, &node.words);
  std::vector<Uses> uses(in_order.size());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (const auto found = words.find(in_order[i]); found != words.end())
      uses[i].words = *found->second;
  }
  return uses;
}

// Records what the graph uses, from which `call` has instantiated or updated `executable`, and
// divides the graph if it `may_divide`.
inline void note_graph(const char* call, CUgraphExec executable, CUgraph graph,
                       bool may_divide) noexcept {
  beside(call, [&] {
    const int device = Driver::device();
    const auto captured = CapturedOperators::instance().find(graph);
    const auto divided = [&](const Uses& all, const UsesOfNodes& uses_of_nodes) {
      return may_divide ? divide(graph, executable, device, all, uses_of_nodes) : nullptr;
    };
    if (captured && captured->device == device) {
      Uses all = captured->all();
      auto parts = divided(all, [&](const auto& nodes) { return captured->by_node(nodes); });
      GraphUses::instance().set(executable, std::move(all), std::move(parts));
    } else if (may_want_uses()) {
      GraphUses::Nodes nodes = nodes_of(graph);
      auto parts = divided({.words = GraphUses::joined(nodes), .ranges = {}},
                           [&](const auto& in_order) { return words_of_nodes(nodes, in_order); });
      GraphUses::instance().set(executable, std::move(nodes), std::move(parts));
    }
  });
}

// Records that a kernel node of `executable` has new parameters.
template <class Parameters>
void note_node(const char* call, const void* executable, const void* node,
               const Parameters& parameters) noexcept {
  GraphUses::instance().drop_parts(executable);
  if (!may_want_uses()) return;
  beside(call, [&] {
    GraphUses::instance().set_node(executable,
                                   {.handle = node, .words = words_of_parameters(parameters)});
  });
}

// Records that a node of `executable` now launches another child graph.
inline void note_child(const char* call, const void* executable, const void* node,
                       CUgraph child) noexcept {
  GraphUses::instance().drop_parts(executable);
  if (!may_want_uses()) return;
  beside(call, [&] {
    GraphUses::Node noted{.handle = node, .words = {}};
    for (const GraphUses::Node& each : nodes_of(child))
      noted.words.insert(noted.words.end(), each.words.begin(), each.words.end());
    GraphUses::instance().set_node(executable, std::move(noted));
  });
}

auto instantiate_graph(const auto& call, auto* out, CUgraph graph, auto... how) {
  const auto result = call.forward(out, graph, how...);
  if (result == call.success()) note_graph(call.name(), *out, graph, /*may_divide=*/true);
  return result;
}

auto update_graph(const auto& call, auto executable, CUgraph graph, auto... answers) {
  const auto result = call.forward(executable, graph, answers...);
  if (result != call.success()) return result;
  GraphUses::instance().drop_parts(executable);
  // Programs may update a graph before each launch, which takes less time than dividing it.
  note_graph(call.name(), executable, graph, /*may_divide=*/false);
  return result;
}

auto set_kernel_node(const auto& call, auto executable, auto node, const auto* parameters) {
  const auto result = call.forward(executable, node, parameters);
  if (result == call.success()) note_node(call.name(), executable, node, *parameters);
  return result;
}

auto set_child_node(const auto& call, auto executable, auto node, CUgraph child) {
  const auto result = call.forward(executable, node, child);
  if (result == call.success()) note_child(call.name(), executable, node, child);
  return result;
}

auto set_node(const auto& call, auto executable, auto node, auto* parameters) {
  static_assert(int{cudaGraphNodeTypeGraph} == int{CU_GRAPH_NODE_TYPE_GRAPH});
  static_assert(int{cudaGraphNodeTypeKernel} == int{CU_GRAPH_NODE_TYPE_KERNEL});
  const auto result = call.forward(executable, node, parameters);
  if (result != call.success()) return result;
  GraphUses::instance().drop_parts(executable);
  const int type = parameters->type;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH)
    note_child(call.name(), executable, node, parameters->graph.graph);
  if (type == CU_GRAPH_NODE_TYPE_KERNEL)
    note_node(call.name(), executable, node, parameters->kernel);
  return result;
}

// Handles changes of nodes that are not kernels, and switching nodes off.
auto change_graph(const auto& call, auto executable, auto... change) {
  const auto result = call.forward(executable, change...);
  if (result == call.success()) GraphUses::instance().drop_parts(executable);
  return result;
}

auto destroy_graph(const auto& call, auto executable) {
  GraphUses::instance().forget(executable);
  return call.forward(executable);
}

auto destroy_source(const auto& call, CUgraph graph) {
  beside(call.name(), [&] { CapturedOperators::instance().forget(graph); });
  return call.forward(graph);
}

// Launches the parts of the graph if uses are `wanted`, otherwise the whole graph. Not inlined,
// like note_driver_launch().
[[gnu::noinline]] auto launch_known(const auto& call, auto executable, auto stream,
                                    const GraphUses::Known& graph, bool wanted) {
  const int device = call.device_of(stream);
  const StreamHandle order = call.order(stream);
  if (!runs_now(device, order)) return call.forward(executable, stream);
  const auto launch_one = [&](auto launched, const Uses* uses) {
    if (wanted && uses != nullptr)
      beside(call.name(), [&] { note_graph_uses(device, order, *uses); });
    return call.forward(launched, stream);
  };
  if (graph.parts == nullptr) return launch_one(executable, graph.uses.get());
  return graph.parts->in_order(device, order, [&](const std::vector<GraphParts::Part>& parts) {
    if (parts.empty() || !wanted) return launch_one(executable, graph.uses.get());
    auto result = call.success();
    for (const GraphParts::Part& part : parts) {
      result = launch_one(static_cast<decltype(executable)>(part.executable), &part.uses);
      if (result != call.success()) break;
    }
    return result;
  });
}

auto launch_graph(const auto& call, auto executable, auto stream) {
  const bool wanted = wants_graph_uses();
  if (!wanted && !GraphUses::instance().has_parts()) return call.forward(executable, stream);
  const GraphUses::Known graph = GraphUses::instance().find(executable);
  if (!wanted && graph.parts == nullptr) return call.forward(executable, stream);
  return launch_known(call, executable, stream, graph, wanted);
}

}  // namespace uvm::preload::cuda
