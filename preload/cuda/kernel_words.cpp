#include "preload/cuda/kernel_words.hpp"

#include <optional>
#include <vector>

#include "preload/cuda/driver.hpp"
#include "preload/cuda/runtime.hpp"
#include "preload/kernel_arguments.hpp"
#include "runtime/log.hpp"

namespace uvm::preload::cuda {
namespace {

using Layout = KernelLayouts::Layout;

template <class Handle>
using Question = CUresult (*)(Handle, std::size_t, std::size_t*, std::size_t*);

void say_that_drivers_are_too_old() {
  log_once(LogLevel::kWarning, "kernel-parameters",
           "the driver does not report the parameters of kernels (drivers for CUDA 12.4 and later "
           "do): memory comes to the device by page faults, not ahead of kernels");
}

// For the index after the last parameter the driver returns CUDA_ERROR_INVALID_VALUE; for a handle
// of another kind it returns another error.
template <class Handle>
std::optional<Layout> layout_of(Handle handle, Question<Handle> ask) {
  if (ask == nullptr) {
    say_that_drivers_are_too_old();
    return std::nullopt;
  }
  Layout layout;
  while (true) {
    KernelLayouts::Parameter found;
    const CUresult result = ask(handle, layout.size(), &found.offset_bytes, &found.size_bytes);
    if (result == CUDA_ERROR_INVALID_VALUE) return layout;
    if (result != CUDA_SUCCESS) return std::nullopt;
    layout.push_back(found);
  }
}

// A launch also accepts a CUkernel cast to CUfunction.
std::optional<Layout> layout_of(CUfunction function) {
  auto layout = layout_of(function, NEXT_OF_DRIVER(cuFuncGetParamInfo));
  if (layout || NEXT_OF_DRIVER(cuKernelGetParamInfo) == nullptr) return layout;
  return layout_of(reinterpret_cast<CUkernel>(function), NEXT_OF_DRIVER(cuKernelGetParamInfo));
}

// Clears the runtime's last error if this query fails, unless the program had an error before.
CUfunction function_of_symbol(const void* symbol) {
  const auto ask = NEXT_OF_RUNTIME(cudaGetFuncBySymbol);
  if (ask == nullptr) return nullptr;
  const bool had_error = pass_on(NEXT_OF_RUNTIME(cudaPeekAtLastError)) != cudaSuccess;
  cudaFunction_t function = nullptr;
  if (ask(&function, symbol) == cudaSuccess) return function;
  if (!had_error) pass_on(NEXT_OF_RUNTIME(cudaGetLastError));
  return nullptr;
}

// `extra` is a list of pairs of a key and its value, and ends with CU_LAUNCH_PARAM_END.
void add_buffer(void* const* extra, Words* words) {
  const void* buffer = nullptr;
  std::size_t size_bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size_bytes = *static_cast<const std::size_t*>(extra[1]);
  }
  if (buffer != nullptr) add_words(buffer, size_bytes, words);
}

template <class Ask>
Words words_by(const void* handle, const Arguments& arguments, Ask ask) {
  Words words;
  if (arguments.each != nullptr) {
    KernelLayouts::instance().add_arguments(handle, arguments.each, &words, ask);
  } else if (arguments.extra != nullptr) {
    add_buffer(arguments.extra, &words);
  }
  return words;
}

void add_graph(CUgraph graph, GraphUses::Nodes* nodes);

// Returns the words of all kernels of a child graph, as the words of one node.
Words words_of_child(CUgraphNode node) {
  CUgraph child = nullptr;
  if (pass_on(NEXT_OF_DRIVER(cuGraphChildGraphNodeGetGraph), node, &child) != CUDA_SUCCESS)
    return {};
  GraphUses::Nodes below;
  add_graph(child, &below);
  Words words;
  for (const GraphUses::Node& each : below)
    add_words(each.words.data(), each.words.size() * sizeof(each.words[0]), &words);
  return words;
}

Words words_of_node(CUgraphNode node) {
  CUgraphNodeType type{};
  if (pass_on(NEXT_OF_DRIVER(cuGraphNodeGetType), node, &type) != CUDA_SUCCESS) return {};
  if (type == CU_GRAPH_NODE_TYPE_GRAPH) return words_of_child(node);
  CUDA_KERNEL_NODE_PARAMS parameters{};
  if (type != CU_GRAPH_NODE_TYPE_KERNEL ||
      pass_on(NEXT_OF_DRIVER(cuGraphKernelNodeGetParams_v2), node, &parameters) != CUDA_SUCCESS) {
    return {};
  }
  return words_of_parameters(parameters);
}

void add_graph(CUgraph graph, GraphUses::Nodes* nodes) {
  std::size_t count = 0;
  const auto ask = NEXT_OF_DRIVER(cuGraphGetNodes);
  if (pass_on(ask, graph, static_cast<CUgraphNode*>(nullptr), &count) != CUDA_SUCCESS) return;
  std::vector<CUgraphNode> found(count);
  if (count == 0 || pass_on(ask, graph, found.data(), &count) != CUDA_SUCCESS) return;
  for (const CUgraphNode node : found) {
    Words words = words_of_node(node);
    if (!words.empty()) nodes->push_back({.handle = node, .words = std::move(words)});
  }
}

}  // namespace

Words words_of(CUfunction function, const Arguments& arguments) {
  return words_by(function, arguments, [&] { return layout_of(function); });
}

Words words_of(CUkernel kernel, const Arguments& arguments) {
  return words_by(kernel, arguments,
                  [&] { return layout_of(kernel, NEXT_OF_DRIVER(cuKernelGetParamInfo)); });
}

Words words_of_symbol(const void* symbol, const Arguments& arguments) {
  return words_by(symbol, arguments, [&]() -> std::optional<Layout> {
    const CUfunction function = function_of_symbol(symbol);
    if (function == nullptr) return std::nullopt;
    return layout_of(function, NEXT_OF_DRIVER(cuFuncGetParamInfo));
  });
}

GraphUses::Nodes nodes_of(CUgraph graph) {
  GraphUses::Nodes nodes;
  add_graph(graph, &nodes);
  return nodes;
}

}  // namespace uvm::preload::cuda
