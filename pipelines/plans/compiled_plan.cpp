#include "pipelines/plans/compiled_plan.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace uvm {

std::shared_ptr<const CompiledPlan> CompiledPlan::compile(const Backend& backend,
                                                          const PlanProgram& program) {
  auto plan = std::shared_ptr<CompiledPlan>(new CompiledPlan);
  plan->backend_ = &backend;
  plan->types_ = program.types;
  plan->bound_ = program.bound;
  const std::set<std::string> bound(program.bound.begin(), program.bound.end());
  std::set<std::string> used;
  PlanDescription activations;
  std::map<std::string, std::size_t>& places = plan->places_;
  const auto use = [&](const std::string& tensor, std::size_t step, bool is_written) {
    used.insert(tensor);
    if (!program.types.contains(tensor)) {
      throw std::invalid_argument(fmt::format("tensor '{}' has no type", tensor));
    }
    if (bound.contains(tensor)) return;
    const auto end = static_cast<std::int64_t>(step) + 1;
    const auto found = places.find(tensor);
    if (found != places.end()) {
      activations.storages[found->second].end_use = end;
      return;
    }
    if (!is_written) {
      throw std::invalid_argument(
          fmt::format("operation {} reads tensor '{}' before it is written", step, tensor));
    }
    places.emplace(tensor, activations.storages.size());
    activations.storages.push_back(
        {tensor, std::to_string(program.types.at(tensor).size_bytes()), end - 1, end, ""});
  };
  for (std::size_t step = 0; step < program.operations.size(); ++step) {
    const PlanOperation& operation = program.operations[step];
    Backend::Kernel kernel = backend.kernel(operation.kernel);
    if (!kernel) {
      throw std::invalid_argument(fmt::format("operation {}: backend '{}' has no kernel '{}'", step,
                                              backend.name(), operation.kernel));
    }
    for (const std::string& tensor : operation.inputs) use(tensor, step, false);
    for (const std::string& tensor : operation.outputs) use(tensor, step, true);
    plan->steps_.push_back({std::move(kernel), operation});
  }
  for (const std::string& tensor : program.bound) {
    if (used.contains(tensor)) continue;
    throw std::invalid_argument(fmt::format("no operation uses the bound tensor '{}'", tensor));
  }
  plan->activations_ =
      std::make_unique<const StoragePlan>(StoragePlan::make(std::move(activations)));
  return plan;
}

}  // namespace uvm
