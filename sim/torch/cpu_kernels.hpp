// Runs an operator's CPU kernel. Products of matrices and convolutions of half precision compute in
// float and round once, as tensor cores do. Most processors multiply halves one by one, so a
// product would take 60 times as long as in float.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace uvm::sim_kernels {

// Runs the kernel of `key`, CPU or SparseCPU. The stack holds CPU tensors. Throws the same
// exceptions as the kernel.
void run_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, torch::jit::Stack* stack);

}  // namespace uvm::sim_kernels
