// The facts about an operator that the redirect needs: how the operator runs on the simulated
// device, the arguments that it writes, and its checks of their devices. Read from the operator's
// schema once, at installation.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace uvm::sim_kernels {

enum class Route {
  kNative,       // PyTorch's own CUDA code, which launches no kernel
  kRedirect,     // the CPU kernel on the same bytes
  kUnavailable,  // a CUDA kernel without a CPU counterpart
  kNone          // not replaced: no CUDA kernel, or another library's operator
};

enum class DeviceCheck {
  kNone,       // mixes devices by design
  kPointwise,  // TensorIterator's check and message
  kStrict      // the check and message of PyTorch's generated wrappers
};

struct OperatorPlan {
  std::string name;                      // "aten::add.Tensor"
  std::string method;                    // the operator's name in messages of device checks
  std::vector<int> accesses;             // per argument: UVMSIM_READ, UVMSIM_WRITE or both
  std::optional<std::size_t> generator;  // position of the generator argument
  DeviceCheck device_check = DeviceCheck::kStrict;
  std::optional<std::size_t> masks;  // position of indices; the host waits if they are masks
  bool host_waits = false;           // the host knows the result's value or shape on return
  c10::DispatchKey cpu_key = c10::DispatchKey::CPU;  // key of the kernel that runs
};

// `key` is the kernel that is replaced: CUDA or SparseCUDA.
Route route_of(const c10::OperatorHandle& op, c10::DispatchKey key);
OperatorPlan plan_of(const c10::OperatorHandle& op, c10::DispatchKey key = c10::DispatchKey::CUDA);

}  // namespace uvm::sim_kernels
