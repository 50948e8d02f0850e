// What the interposed calls about executable graphs say to GraphUses. None of these throws.
#pragma once

#include <cuda.h>

#include "preload/cuda/kernel_words.hpp"
#include "preload/graph_uses.hpp"
#include "preload/interpose.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload::cuda {

// `executable` was made from the graph, or updated with it; `call` says so.
inline void note_graph(const char* call, const void* executable, CUgraph graph) noexcept {
  if (!may_want_uses()) return;
  beside(call, [&] { GraphUses::instance().set(executable, nodes_of(graph)); });
}

// A node of it has other parameters, of which words() finds the words.
template <class FindWords>
void note_node(const char* call, const void* executable, const void* node,
               FindWords words) noexcept {
  if (!may_want_uses()) return;
  beside(call,
         [&] { GraphUses::instance().set_node(executable, {.handle = node, .words = words()}); });
}

// A node of it launches another graph.
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

// `stream` is about to get the graph.
inline void note_graph_launch(const char* call, const void* executable, int device,
                              StreamHandle stream) noexcept {
  beside(call, [&] {
    const auto words = GraphUses::instance().words_of(executable);
    if (words != nullptr) note_words(device, stream, *words, live::Launch::kGraph);
  });
}

}  // namespace uvm::preload::cuda
