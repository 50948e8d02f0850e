// Divides CUDA's graphs into parts (graph_parts.hpp).
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <vector>

#include "preload/graph_parts.hpp"

namespace uvm::preload::cuda {

// What each of these nodes uses. The nodes are in an order in which each comes after the nodes that
// it depends on.
using UsesOfNodes = std::function<std::vector<Uses>(const std::vector<CUgraphNode>& nodes)>;

// Call after `executable` was instantiated from `graph`, which uses `all` on the device. Returns
// nullptr if that is less than policy::kDividedShare of the device's memory, if the dependencies
// leave no place to divide the graph, or if the driver cannot copy it.
std::shared_ptr<GraphParts> divide(CUgraph graph, CUgraphExec executable, int device,
                                   const Uses& all, const UsesOfNodes& uses_of_nodes);

}  // namespace uvm::preload::cuda
