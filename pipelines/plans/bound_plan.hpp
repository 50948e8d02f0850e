// A compiled plan with its tensors, on one device (Glow, Phase 2: BoundFunction). It owns the
// memory that runs change and nobody else sees: the arena of activations. Several bound plans of
// one compiled plan may run at the same time, each by one thread. A tensor that they share must be
// one that no operation writes, and be on the device already.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "pipelines/plans/compiled_plan.hpp"
#include "pipelines/tensors/tensor_bindings.hpp"

namespace uvm {

class BoundPlan {
 public:
  // `tensors` has one for each name in plan->bound(). They and their devices must outlive this.
  // std::invalid_argument: a tensor is missing or has another type, or the device does not exist.
  // std::bad_alloc.
  BoundPlan(std::shared_ptr<const CompiledPlan> plan, int device,
            std::map<std::string, ResidentTensor*> tensors);
  ~BoundPlan();
  BoundPlan(const BoundPlan&) = delete;
  BoundPlan& operator=(const BoundPlan&) = delete;

  // Runs all operations. Inputs that are not on the device are transferred first; outputs stay on
  // it. An operation that writes a tensor and does not read it writes all of it.
  void run();

  int device() const { return device_; }

 private:
  DeviceSpan input(const std::string& tensor);
  DeviceSpan output(const std::string& tensor, bool is_read);
  DeviceSpan activation(const std::string& tensor) const;

  std::shared_ptr<const CompiledPlan> plan_;
  int device_;
  std::map<std::string, ResidentTensor*> tensors_;
  char* arena_ = nullptr;
};

}  // namespace uvm
