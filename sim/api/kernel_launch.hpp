// Launches kernels, if the plug-in of UVMSIM_KERNELS has code for them. Returns the layout of their
// parameters, if the plug-in declares the sizes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/machine.hpp"

namespace uvmsim::api {

// The message of the error "no kernel image". Programs quote it in exceptions, so it explains more
// than the message of a real device.
inline constexpr const char* kNoImageText =
    "no kernel image is available for execution on the device: the simulated device runs no GPU "
    "code, only PyTorch's own operators and the kernels of a plug-in (UVMSIM_KERNELS); "
    "torch.compile works with the backend aot_eager";

struct LaunchResult {
  enum class Kind { kLaunched, kUnknownFunction, kNoImage };
  Kind kind;
  Status status = Status::kOk;  // the status of a launched kernel
};

struct KernelLaunch {
  int device;
  StreamHandle stream;
  const void* function;  // the host function that stands for the kernel
  uvmsim_grid grid;
  void** arguments;
};

// If a kernel has no code, prints its name on stderr once. PyTorch's spin kernel
// (torch.cuda._sleep) keeps its stream busy for one virtual nanosecond a cycle.
LaunchResult launch_kernel(const KernelLaunch& launch);

// Makes a node of an executable graph launch this kernel. Ignores the launch's stream.
LaunchResult set_graph_kernel(GraphExecHandle exec, GraphNodeHandle node, KernelLaunch launch);

struct Parameter {
  std::size_t offset_bytes;
  std::size_t size_bytes;
};
// Returns the parameters in order, or nullopt if the plug-in does not declare them. A parameter
// begins at a multiple of the largest power of two that divides its size, at most 16.
std::optional<std::vector<Parameter>> parameters_of(const void* function);

// Gets one parameter. Returns kInvalidHandle for an unknown function, kInvalidValue if the index is
// too large. `size_bytes` may be null.
Status parameter_of(const void* function, std::size_t index, std::size_t* offset_bytes,
                    std::size_t* size_bytes);

// Launches a kernel with its arguments in one buffer, laid out as in parameters_of().
LaunchResult launch_from_buffer(KernelLaunch launch, std::byte* buffer, std::size_t size_bytes);

}  // namespace uvmsim::api
