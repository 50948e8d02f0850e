// Finds words (values that may be addresses) in the arguments of CUDA's kernels. Finds none if the
// driver does not report the layout of kernel parameters (drivers before CUDA 12.4).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "preload/graph_uses.hpp"
#include "preload/memory_uses.hpp"

namespace uvm::preload::cuda {

// The arguments of a launch. `each` has one pointer for each parameter. If `each` is nullptr,
// `extra` is a list that refers to a buffer with all parameters. Both may be nullptr.
struct Arguments {
  void* const* each = nullptr;
  void* const* extra = nullptr;
};

// Return the words in a kernel's arguments. The kernel is given by the driver's handle, by a
// CUkernel, or by its host function (the symbol in cudaLaunchKernel).
Words words_of(CUfunction function, const Arguments& arguments);
Words words_of(CUkernel kernel, const Arguments& arguments);
Words words_of_symbol(const void* symbol, const Arguments& arguments);

// Returns the kernels of a graph and of its child graphs. A cudaGraph_t is a CUgraph.
GraphUses::Nodes nodes_of(CUgraph graph);

// Returns the words in a kernel node's parameters, in any form of the driver or of the runtime.
template <class Parameters>
Words words_of_parameters(const Parameters& parameters) {
  const Arguments arguments{parameters.kernelParams, parameters.extra};
  if constexpr (requires { parameters.kern; }) {
    if (parameters.func == nullptr) return words_of(parameters.kern, arguments);
  }
  if constexpr (std::is_same_v<decltype(parameters.func), CUfunction>) {
    return words_of(parameters.func, arguments);
  } else {
    return words_of_symbol(parameters.func, arguments);
  }
}

}  // namespace uvm::preload::cuda
