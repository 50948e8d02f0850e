// A program that one backend has compiled (Glow, Phase 2: CompiledFunction): its kernels in their
// order, the types of its tensors, and where its activations lie in memory. It holds no tensor and
// nothing of the compilation. Immutable; any number of threads may bind and run it at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipelines/plans/storage_plan.hpp"
#include "pipelines/tensors/backend.hpp"
#include "pipelines/tensors/resident_tensor.hpp"

namespace uvm {

// Tensors that operations write and nobody outside names are activations.
struct PlanProgram {
  std::map<std::string, TensorType> types;  // of all tensors
  std::vector<PlanOperation> operations;    // in the order of execution
  std::vector<std::string> bound;           // inputs, weights, outputs: tensors that a run is given
};

class CompiledPlan {
 public:
  struct Step {
    Backend::Kernel kernel;
    PlanOperation operation;
  };

  // The backend must outlive the plan. std::invalid_argument, which names the operation or tensor,
  // for a kernel that the backend has not, a tensor without a type, an activation that is read
  // before it is written, and a bound tensor that no operation uses.
  static std::shared_ptr<const CompiledPlan> compile(const Backend& backend,
                                                     const PlanProgram& program);

  const Backend& backend() const { return *backend_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<std::string>& bound() const { return bound_; }
  const TensorType& type(const std::string& tensor) const { return types_.at(tensor); }
  // Activations share one arena.
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
