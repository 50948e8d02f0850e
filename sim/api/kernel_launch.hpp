// Launches of kernels and the layout of their parameters, as far as the plug-in of UVMSIM_KERNELS
// has code for them and declares their sizes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/machine.hpp"

namespace uvmsim::api {

struct LaunchResult {
  enum class Kind { kLaunched, kUnknownFunction, kNoImage };
  Kind kind;
  Status status = Status::kOk;  // of a kernel that was launched
};

struct KernelLaunch {
  int device;
  StreamHandle stream;
  const void* function;  // the host function that stands for the kernel
  uvmsim_grid grid;
  void** arguments;
};

// A kernel that nobody has code for is named on stderr once. PyTorch's spin kernel
// (torch.cuda._sleep) keeps its stream busy for one virtual nanosecond a cycle.
LaunchResult launch_kernel(const KernelLaunch& launch);

// A node of an executable graph launches this kernel from now on. The launch's stream is not looked
// at.
LaunchResult set_graph_kernel(GraphExecHandle exec, GraphNodeHandle node, KernelLaunch launch);

struct Parameter {
  std::size_t offset_bytes;
  std::size_t size_bytes;
};
// In their order. A parameter begins at a multiple of the largest power of two that divides its
// size, 16 at most. Nothing for a function whose parameters nobody declares.
std::optional<std::vector<Parameter>> parameters_of(const void* function);

// One of them, as the interfaces ask: kInvalidHandle for an unknown function, kInvalidValue for an
// index that is too large. `size_bytes` may be null.
Status parameter_of(const void* function, std::size_t index, std::size_t* offset_bytes,
                    std::size_t* size_bytes);

// The same kernel with its arguments in one buffer, laid out as parameters_of() says.
LaunchResult launch_from_buffer(KernelLaunch launch, std::byte* buffer, std::size_t size_bytes);

}  // namespace uvmsim::api
