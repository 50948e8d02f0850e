// The boxed function behind the CUDA operators of the simulated device. It runs the operator's CPU
// kernel on the bytes of the operator's CUDA arguments, and reports to the simulator the ranges
// that the operator reads and writes. Results get device memory. Stateless apart from the
// operator's plan; any thread may call.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <utility>

#include "sim/torch/operator_plan.hpp"

namespace uvm::sim_kernels {

class RedirectedOperator final : public c10::OperatorKernel {
 public:
  explicit RedirectedOperator(OperatorPlan plan) : plan_(std::move(plan)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  OperatorPlan plan_;
};

// Fails with a line that names the operator.
class UnavailableOperator final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
};

// An operator on a kind of tensor that is not redirected. Runs torch's own kernel, which may not
// need the device. If that kernel fails in CUDA, the error names the kind of the tensors.
class UnredirectedOperator final : public c10::OperatorKernel {
 public:
  UnredirectedOperator(c10::SafeKernelFunction kernel, const char* kind)
      : kernel_(std::move(kernel)), kind_(kind) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction kernel_;
  const char* kind_;
};

// Calls the redirect of an operator, for special cases that are registered instead of it for the
// key CUDA. `Result` is a tensor type.
class DirectCall {
 public:
  explicit DirectCall(const char* name, const char* overload = "");

  template <typename Result, typename... Arguments>
  Result call(Arguments&&... arguments) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Arguments>(arguments)...);
    run(stack);
    return torch::jit::pop(stack).to<Result>();
  }

 private:
  void run(torch::jit::Stack& stack) const;

  c10::OperatorHandle op_;
  OperatorPlan plan_;
};

}  // namespace uvm::sim_kernels
