// An operator in a CUDA graph: everything that its CPU kernel needs to run at each launch. Its
// tensors are CPU tensors over the captured addresses and do not own the memory. As for a real
// kernel's pointers, the graph's memory pool decides how long the memory lives. The object is
// immutable after it is added to a graph; launches of one graph run one after another.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace uvm::sim_kernels {

class CapturedOperator {
 public:
  CapturedOperator(const c10::OperatorHandle& op, torch::jit::Stack arguments)
      : op_(op), arguments_(std::move(arguments)) {}

  const c10::IValue& argument(std::size_t i) const { return arguments_[i]; }

  // Sets the random numbers of each launch, for the argument at that position.
  void set_random(std::size_t generator, const at::PhiloxCudaState& state) {
    random_ = {generator, state};
  }

  // Copies the `index`-th tensor that the operator returns to `destination`.
  void add_result(std::size_t index, at::Tensor destination) {
    results_.push_back({index, std::move(destination)});
  }

  // Adds an argument that the operator writes to. A kernel may set the argument's lazy conjugation
  // or negation bit, so each launch clears these bits first.
  void add_written(at::Tensor argument) { written_.push_back(std::move(argument)); }

  // Throws the same exceptions as the CPU kernel.
  void run() const;

 private:
  struct Random {
    std::size_t generator;
    at::PhiloxCudaState state;
  };
  struct Result {
    std::size_t index;
    at::Tensor destination;
  };

  void keep(std::size_t index, const at::Tensor& tensor) const;

  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> written_;
  std::optional<Random> random_;
  std::vector<Result> results_;
};

}  // namespace uvm::sim_kernels
