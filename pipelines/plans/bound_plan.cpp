#include "pipelines/plans/bound_plan.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace uvm {

BoundPlan::BoundPlan(std::shared_ptr<const CompiledPlan> plan, int device,
                     std::map<std::string, ResidentTensor*> tensors)
    : plan_(std::move(plan)), device_(device), tensors_(std::move(tensors)) {
  if (device < 0 || device >= plan_->backend().device_count()) {
    throw std::invalid_argument(fmt::format("backend '{}' has no device {}; it has {}",
                                            plan_->backend().name(), device,
                                            plan_->backend().device_count()));
  }
  for (const std::string& name : plan_->bound()) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw std::invalid_argument(fmt::format("no tensor is bound to '{}'", name));
    }
    if (found->second->type() != plan_->type(name)) {
      throw std::invalid_argument(fmt::format("the tensor bound to '{}' has another type", name));
    }
  }
  const std::int64_t arena_bytes = plan_->activations().arena_bytes();
  if (arena_bytes != 0) {
    arena_ = static_cast<char*>(
        plan_->backend().transfers().allocate(device_, static_cast<std::size_t>(arena_bytes)));
  }
}

BoundPlan::~BoundPlan() {
  if (arena_ != nullptr) plan_->backend().transfers().free(device_, arena_);
}

DeviceSpan BoundPlan::activation(const std::string& tensor) const {
  return {arena_ + plan_->place(tensor).offset, plan_->type(tensor).size_bytes()};
}

// A kernel does not write to its inputs, so the cast is safe.
DeviceSpan BoundPlan::input(const std::string& tensor) {
  if (plan_->is_activation(tensor)) return activation(tensor);
  ResidentTensor& bound = *tensors_.at(tensor);
  return {const_cast<void*>(bound.device_data(plan_->backend().transfers(), device_)),
          bound.size_bytes()};
}

DeviceSpan BoundPlan::output(const std::string& tensor, bool is_read) {
  if (plan_->is_activation(tensor)) return activation(tensor);
  ResidentTensor& bound = *tensors_.at(tensor);
  const DeviceTransfers& transfers = plan_->backend().transfers();
  void* const address = is_read ? bound.mutable_device_data(transfers, device_)
                                : bound.device_output(transfers, device_);
  return {address, bound.size_bytes()};
}

void BoundPlan::run() {
  std::vector<DeviceSpan> inputs, outputs;
  for (const CompiledPlan::Step& step : plan_->steps()) {
    inputs.clear();
    outputs.clear();
    for (const std::string& tensor : step.operation.inputs) inputs.push_back(input(tensor));
    for (const std::string& tensor : step.operation.outputs) {
      const auto& read = step.operation.inputs;
      outputs.push_back(output(tensor, std::find(read.begin(), read.end(), tensor) != read.end()));
    }
    step.kernel(device_, inputs, outputs);
  }
}

}  // namespace uvm
