// A compiled plan bound to its tensors on one device (Glow, Phase 2: BoundFunction). A bound plan
// owns the arena of activations, which only its own runs use. Bound plans of one compiled plan may
// run at the same time, each on one thread. They may share a tensor if no operation writes the
// tensor and its data is already on the device.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "pipelines/plans/compiled_plan.hpp"

namespace uvm {

class BoundPlan {
 public:
  // `tensors` contains a tensor for each name in plan->bound(). The tensors and their devices must
  // outlive the bound plan. Throws std::invalid_argument if a tensor is missing or has another
  // type, or if there is no such device, and std::bad_alloc if the device has no memory for the
  // arena.
  BoundPlan(std::shared_ptr<const CompiledPlan> plan, int device,
            std::map<std::string, ResidentTensor*> tensors);
  ~BoundPlan();
  BoundPlan(const BoundPlan&) = delete;
  BoundPlan& operator=(const BoundPlan&) = delete;

  // Runs all operations. Inputs that are not on the device are transferred first; outputs stay on
  // the device. An operation that writes a tensor without reading it must write all of it.
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
