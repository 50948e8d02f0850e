#include "pytorch/plugin/captured_graphs.hpp"

#include <utility>

#include "hints/oversubscription/graph_uses.hpp"
#include "pytorch/plugin/facades.hpp"
#include "pytorch/plugin/operator_uses.hpp"

namespace uvm::torch_plugin {

CapturedGraphs& CapturedGraphs::instance() {
  static auto* const graphs = new CapturedGraphs;
  return *graphs;
}

void CapturedGraphs::begin_capture() {
  {
    const std::lock_guard lock(mutex_);
    is_mixed_ = captures_.fetch_add(1, std::memory_order_relaxed) != 0;
    noted_ = {};
  }
  watch_operators(Watcher::kCapture, true);
}

void CapturedGraphs::end_capture() {
  bool is_last = false;
  {
    const std::lock_guard lock(mutex_);
    is_last = captures_.fetch_sub(1, std::memory_order_relaxed) == 1;
    if (is_mixed_) noted_ = {};
  }
  if (is_last) watch_operators(Watcher::kCapture, false);
}

void CapturedGraphs::add(c10::DeviceIndex device, std::span<const live::UseRange> uses) {
  const std::lock_guard lock(mutex_);
  if (noted_.ranges.empty()) noted_.device = device;
  if (noted_.device == device) noted_.ranges.insert(noted_.ranges.end(), uses.begin(), uses.end());
}

void CapturedGraphs::name_last_capture(const void* graph) {
  const std::lock_guard lock(mutex_);
  if (noted_.ranges.empty()) return;
  noted_.ranges = live::joined_uses(noted_.ranges);
  graphs_[graph] = std::make_shared<const Uses>(std::exchange(noted_, {}));
}

void CapturedGraphs::before_replay(const void* graph) const {
  CachingManagedAllocator* ours = process_allocator();
  if (ours == nullptr || !ours->kernel_uses().wanted()) return;
  std::shared_ptr<const Uses> uses;
  {
    const std::lock_guard lock(mutex_);
    const auto found = graphs_.find(graph);
    if (found == graphs_.end()) return;
    uses = found->second;
  }
  ours->kernel_uses().note(uses->device, current_stream(uses->device), uses->ranges,
                           live::Launch::kGraph);
}

void CapturedGraphs::forget(const void* graph) {
  const std::lock_guard lock(mutex_);
  graphs_.erase(graph);
}

}  // namespace uvm::torch_plugin
