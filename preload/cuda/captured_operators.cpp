#include "preload/cuda/captured_operators.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "hints/oversubscription/graph_uses.hpp"
#include "preload/cuda/driver.hpp"

namespace uvm::preload::cuda {

CapturedOperators& CapturedOperators::instance() {
  static auto* const operators = new CapturedOperators;
  return *operators;
}

void CapturedOperators::add(int device, CUstream stream, std::span<const live::UseRange> ranges,
                            bool has_run) {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* tips = nullptr;
  const CUgraphEdgeData* data = nullptr;
  std::size_t count = 0;
  if (pass_on(NEXT_OF_DRIVER(cuStreamGetCaptureInfo_v3), stream, &status, &id, &graph, &tips, &data,
              &count) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return;
  }
  Operator added{{tips, tips + count}, {ranges.begin(), ranges.end()}, has_run};
  const std::lock_guard lock(mutex_);
  Entry& entry = captures_[graph];
  if (entry.id != id) entry = {id, std::make_shared<Capture>(Capture{device, {}})};
  if (entry.capture->device == device) entry.capture->operators.push_back(std::move(added));
}

std::shared_ptr<const CapturedOperators::Capture> CapturedOperators::find(CUgraph graph) {
  const std::lock_guard lock(mutex_);
  const auto found = captures_.find(graph);
  return found != captures_.end() ? found->second.capture : nullptr;
}

void CapturedOperators::forget(CUgraph graph) {
  const std::lock_guard lock(mutex_);
  captures_.erase(graph);
}

Uses CapturedOperators::Capture::all() const {
  std::vector<live::UseRange> ranges;
  for (const Operator& each : operators)
    ranges.insert(ranges.end(), each.ranges.begin(), each.ranges.end());
  return {.words = {}, .ranges = live::joined_uses(ranges)};
}

std::vector<Uses> CapturedOperators::Capture::by_node(const std::vector<CUgraphNode>& nodes) const {
  std::unordered_map<CUgraphNode, std::size_t> numbers;  // from 1
  for (const CUgraphNode node : nodes) numbers.emplace(node, numbers.size() + 1);
  const auto add = [](const Operator& from, Uses* to) {
    to->ranges.insert(to->ranges.end(), from.ranges.begin(), from.ranges.end());
  };
  std::vector<Uses> arguments(nodes.size() + 1);  // of the operators that begin before a node
  std::vector<Uses> results(nodes.size() + 1);    // of the operators that end before a node
  for (const Operator& each : operators) {
    std::size_t earlier = 0;  // nodes
    for (const CUgraphNode node : each.tips) {
      const auto found = numbers.find(node);
      if (found != numbers.end()) earlier = std::max(earlier, found->second);
    }
    add(each, each.has_run ? &results[earlier] : &arguments[earlier]);
  }
  std::vector<Uses> uses(nodes.size());
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (arguments[node].empty() && node != 0) arguments[node] = arguments[node - 1];
    uses[node] = arguments[node];
    const std::vector<live::UseRange>& written = results[node + 1].ranges;
    uses[node].ranges.insert(uses[node].ranges.end(), written.begin(), written.end());
  }
  return uses;
}

}  // namespace uvm::preload::cuda
