// The words that kernels of CUDA get as arguments, as far as the driver tells the layout of their
// parameters: those from CUDA 12.4 on do.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "preload/graph_uses.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload::cuda {

// The arguments of a launch: one address for each parameter, or else the list `extra`, which names
// a buffer that holds them. Both may be nullptr.
struct Arguments {
  void* const* each = nullptr;
  void* const* extra = nullptr;
};

// Of a kernel by its driver's handle, by the handle that the runtime gives (a CUkernel), and by the
// host function that stands for it.
Words words_of(CUfunction function, const Arguments& arguments);
Words words_of(CUkernel kernel, const Arguments& arguments);
Words words_of_symbol(const void* symbol, const Arguments& arguments);

// Of the kernels of a graph, those of child graphs too. A graph of the runtime is one of the
// driver.
GraphUses::Nodes nodes_of(CUgraph graph);
Words words_of(const CUDA_KERNEL_NODE_PARAMS& parameters);

}  // namespace uvm::preload::cuda
