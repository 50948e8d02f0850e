// A program compiled for one backend (Glow, Phase 2: CompiledFunction): its kernels in order, the
// types of its tensors, and the offsets of its activations. Holds no tensors. Immutable; any number
// of threads may bind and run it at the same time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipelines/plans/storage_plan.hpp"
#include "pipelines/tensors/backend.hpp"
#include "pipelines/tensors/resident_tensor.hpp"

namespace uvm {

// An activation is a tensor that operations write and that is not in `bound`.
struct PlanProgram {
  std::map<std::string, TensorType> types;  // of all tensors
  std::vector<PlanOperation> operations;    // in the order of execution
  std::vector<std::string> bound;           // inputs, weights, outputs: the caller's tensors
};

class CompiledPlan {
 public:
  struct Step {
    Backend::Kernel kernel;
    PlanOperation operation;
  };

  // Compiles the program. The backend must outlive the plan. Throws std::invalid_argument, which
  // names the operation or tensor, if the backend lacks a kernel, a tensor has no type, an
  // activation is read before it is written, or no operation uses a bound tensor.
  static std::shared_ptr<const CompiledPlan> compile(const Backend& backend,
                                                     const PlanProgram& program);

  const Backend& backend() const { return *backend_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<std::string>& bound() const { return bound_; }
  const TensorType& type(const std::string& tensor) const { return types_.at(tensor); }
  // Returns the plan of the activations, which share one arena.
  const StoragePlan& activations() const { return *activations_; }
  bool is_activation(const std::string& tensor) const { return places_.contains(tensor); }
  const StoragePlan::Place& place(const std::string& activation) const {
    return activations_->places()[places_.at(activation)];
  }

 private:
  CompiledPlan() = default;

  const Backend* backend_ = nullptr;
  std::map<std::string, TensorType> types_;
  std::vector<Step> steps_;
  std::vector<std::string> bound_;
  std::map<std::string, std::size_t> places_;  // of activations, in the storage plan
  std::unique_ptr<const StoragePlan> activations_;
};

}  // namespace uvm
