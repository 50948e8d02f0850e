// Records the calls that change or launch executable graphs in GraphUses. Nothing here throws.
#pragma once

#include <cuda.h>

#include "preload/cuda/kernel_words.hpp"
#include "preload/graph_uses.hpp"
#include "preload/interpose.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload::cuda {

// `call` has instantiated `executable` from the graph, or updated it with the graph.
inline void note_graph(const char* call, const void* executable, CUgraph graph) noexcept {
  if (!may_want_uses()) return;
  beside(call, [&] { GraphUses::instance().set(executable, nodes_of(graph)); });
}

// A kernel node of `executable` has new parameters; words() finds their words.
template <class FindWords>
void note_node(const char* call, const void* executable, const void* node,
               FindWords words) noexcept {
  if (!may_want_uses()) return;
  beside(call,
         [&] { GraphUses::instance().set_node(executable, {.handle = node, .words = words()}); });
}

// A node of `executable` launches another child graph.
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

// The graph is about to be launched on `stream`.
inline void note_graph_launch(const char* call, const void* executable, int device,
                              StreamHandle stream) noexcept {
  beside(call, [&] {
    const auto words = GraphUses::instance().words_of(executable);
    if (words != nullptr) note_words(device, stream, *words, live::Launch::kGraph);
  });
}

}  // namespace uvm::preload::cuda
