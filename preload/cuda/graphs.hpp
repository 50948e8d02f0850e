// Handlers of the calls that make, change and launch executable graphs, for both interfaces of
// CUDA. The handlers report the memory that the graphs' kernels use. No function throws.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "preload/cuda/kernel_words.hpp"
#include "preload/define_calls.hpp"
#include "preload/graph_uses.hpp"
#include "preload/interpose.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload::cuda {

// Records that `call` has instantiated `executable` from the graph, or updated it with the graph.
inline void note_graph(const char* call, const void* executable, CUgraph graph) noexcept {
  if (!may_want_uses()) return;
  beside(call, [&] { GraphUses::instance().set(executable, nodes_of(graph)); });
}

// Records that a kernel node of `executable` has new parameters.
template <class Parameters>
void note_node(const char* call, const void* executable, const void* node,
               const Parameters& parameters) noexcept {
  if (!may_want_uses()) return;
  beside(call, [&] {
    GraphUses::instance().set_node(executable,
                                   {.handle = node, .words = words_of_parameters(parameters)});
  });
}

// Records that a node of `executable` now launches another child graph.
inline void note_child(const char* call, const void* executable, const void* node,
                       CUgraph child) noexcept {
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
  if (result == call.success()) note_graph(call.name(), *out, graph);
  return result;
}

auto update_graph(const auto& call, auto executable, CUgraph graph, auto... answers) {
  const auto result = call.forward(executable, graph, answers...);
  if (result == call.success()) note_graph(call.name(), executable, graph);
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
  const int type = parameters->type;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH)
    note_child(call.name(), executable, node, parameters->graph.graph);
  if (type == CU_GRAPH_NODE_TYPE_KERNEL)
    note_node(call.name(), executable, node, parameters->kernel);
  return result;
}

auto destroy_graph(const auto& call, auto executable) {
  if (may_want_uses()) GraphUses::instance().forget(executable);
  return call.forward(executable);
}

// Reports that the graph is about to be launched on `stream`. Not inlined, like
// note_driver_launch().
[[gnu::noinline]] void note_graph_launch(const auto& call, const void* executable,
                                         auto stream) noexcept {
  beside(call.name(), [&] {
    const auto words = GraphUses::instance().words_of(executable);
    if (words == nullptr) return;
    note_words(call.device_of(stream), call.order(stream), *words, live::Launch::kGraph);
  });
}

auto launch_graph(const auto& call, auto executable, auto stream) {
  if (wants_uses()) note_graph_launch(call, executable, stream);
  return call.forward(executable, stream);
}

}  // namespace uvm::preload::cuda
