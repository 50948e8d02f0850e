// Stream capture and graphs.
#include <algorithm>
#include <cstdio>
#include <map>

#include "sim/engine/machine.hpp"

namespace uvmsim {

// ---- capture

Status Machine::begin_capture(int device, StreamHandle stream, CaptureMode mode) {
  const std::lock_guard lock(mutex_);
  Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  const Status status = captures_.begin(*target, mode);
  if (status == Status::kOk) add_graph(target->capture->graph);
  return status;
}

Status Machine::end_capture(int device, StreamHandle stream, GraphHandle* out) {
  std::shared_ptr<Graph> graph;  // of a failed capture; destroyed without the lock
  const std::lock_guard lock(mutex_);
  Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  const Status status = captures_.end(*target, &graph);
  *out = status == Status::kOk ? graph.get() : nullptr;
  if (status != Status::kOk && graph != nullptr) graphs_.erase(graph.get());
  return status;
}

Status Machine::capture_info(int device, StreamHandle stream, CaptureInfo* out) {
  const std::lock_guard lock(mutex_);
  const Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  *out = {};
  const Status status = captures_.state(*target, &out->state);
  if (status == Status::kOk && out->state == CaptureState::kActive) {
    out->id = target->capture->id;
    out->graph = target->capture->graph.get();
    out->dependencies = target->capture_tips.data();
    out->dependency_count = target->capture_tips.size();
  }
  return status;
}

Status Machine::update_capture_dependencies(int device, StreamHandle stream,
                                            const std::vector<GraphNodeHandle>& nodes,
                                            DependencyUpdate update) {
  const std::lock_guard lock(mutex_);
  Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  return captures_.update_dependencies(*target, nodes, update);
}

Status Machine::admit_unsafe_call() {
  const std::lock_guard lock(mutex_);
  return captures_.admit_unsafe_call();
}

Status Machine::refuse_beside_captures() {
  const std::lock_guard lock(mutex_);
  const Status status = captures_.admit_unsafe_call();
  return status == Status::kOk ? captures_.refuse_beside() : status;
}

Status Machine::refuse_capture(int device, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  Stream* target = timeline_.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  return record_or_refuse(*target, NodeKind::kEmpty, nullptr).value_or(Status::kOk);
}

std::optional<Status> Machine::record_or_refuse(Stream& stream, NodeKind kind,
                                                const NodeWork& work) {
  const Status status = captures_.admit_work(stream);
  if (status != Status::kOk) return status;
  if (stream.capture == nullptr) return std::nullopt;
  if (!work) return captures_.refuse_work(stream);
  captures_.record(stream, kind, work);
  return Status::kOk;
}

std::optional<Status> Machine::refuse_blocking(Stream& stream) {
  if (const auto outcome = record_or_refuse(stream, NodeKind::kEmpty, nullptr)) return outcome;
  const Status status = captures_.admit_unsafe_call();
  return status == Status::kOk ? std::nullopt : std::optional(status);
}

// ---- host functions and kernels with their work

Status Machine::run_host_function(int device, StreamHandle stream, const HostFunction& function) {
  {
    const std::lock_guard lock(mutex_);
    Stream* target = timeline_.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    const NodeWork work = [function](Machine&, int, StreamHandle) {
      function();
      return Status::kOk;
    };
    if (const auto outcome = record_or_refuse(*target, NodeKind::kHostFunction, work))
      return *outcome;
  }
  function();
  return Status::kOk;
}

Status Machine::launch_kernel(int device, StreamHandle stream, Kernel launched) {
  const NodeWork work = [kernel = std::move(launched)](Machine& machine, int on,
                                                       StreamHandle lane) {
    const Status status =
        machine.kernel(on, lane, kernel.accesses.data(), kernel.accesses.size(), kernel.work);
    if (status != Status::kOk || !kernel.body) return status;
    return kernel.body() ? Status::kOk : Status::kLaunchFailure;
  };
  {
    const std::lock_guard lock(mutex_);
    Stream* target = timeline_.find_stream(device, stream);
    if (target == nullptr || target->device != device) return Status::kInvalidHandle;
    if (const auto outcome = record_or_refuse(*target, NodeKind::kKernel, work)) return *outcome;
  }
  return work(*this, device, stream);
}

// ---- graphs

GraphHandle Machine::add_graph(const std::shared_ptr<Graph>& graph) {
  graphs_.emplace(graph.get(), graph);
  return graph.get();
}

std::shared_ptr<Graph> Machine::graph_of(GraphHandle handle) const {
  const auto it = graphs_.find(handle);
  if (it != graphs_.end()) return it->second;
  for (const auto& [parent, graph] : graphs_) {
    if (auto child = graph->find_child(handle)) return child;
  }
  return nullptr;
}

GraphHandle Machine::create_graph() {
  const std::lock_guard lock(mutex_);
  return add_graph(std::make_shared<Graph>());
}

Status Machine::clone_graph(GraphHandle handle, GraphHandle* out) {
  const std::lock_guard lock(mutex_);
  const auto graph = graph_of(handle);
  if (graph == nullptr) return Status::kInvalidValue;
  *out = add_graph(graph->clone());
  return Status::kOk;
}

Status Machine::destroy_graph(GraphHandle handle) {
  std::shared_ptr<Graph> graph;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  graph = graph_of(handle);
  // A capture owns its graph, and a parent graph owns its child.
  if (graph == nullptr || !graphs_.contains(handle) || captures_.is_capturing(*graph))
    return Status::kInvalidValue;
  graphs_.erase(handle);
  return Status::kOk;
}

Status Machine::add_graph_node(GraphHandle handle, NodeKind kind, int device, NodeWork work,
                               const std::vector<GraphNodeHandle>& dependencies,
                               GraphNodeHandle* out) {
  const std::lock_guard lock(mutex_);
  const auto graph = graph_of(handle);
  if (graph == nullptr) return Status::kInvalidValue;
  std::vector<GraphNode*> nodes;
  for (const GraphNodeHandle dependency : dependencies) {
    GraphNode* node = graph->find(dependency);
    if (node == nullptr || std::find(nodes.begin(), nodes.end(), node) != nodes.end())
      return Status::kInvalidValue;
    nodes.push_back(node);
  }
  *out = graph->add(kind, device, std::move(work), std::move(nodes));
  return Status::kOk;
}

Status Machine::visit_graph(GraphHandle handle, const std::function<void(const Graph&)>& visit) {
  const std::lock_guard lock(mutex_);
  const auto graph = graph_of(handle);
  if (graph == nullptr) return Status::kInvalidValue;
  visit(*graph);
  return Status::kOk;
}

Status Machine::visit_graph_node(GraphNodeHandle handle,
                                 const std::function<void(const Graph&, const GraphNode&)>& visit) {
  const std::lock_guard lock(mutex_);
  const Graph* holder = nullptr;
  for (const auto& [graph_handle, graph] : graphs_) {
    holder = graph->find_holder(handle);
    if (holder != nullptr) break;
  }
  if (holder == nullptr) return Status::kInvalidValue;
  visit(*holder, *holder->find(handle));
  return Status::kOk;
}

// ---- executable graphs

std::shared_ptr<GraphExec> Machine::graph_exec_of(GraphExecHandle handle) const {
  const auto it = graph_execs_.find(handle);
  return it == graph_execs_.end() ? nullptr : it->second;
}

Status Machine::instantiate_graph(GraphHandle handle, std::uint64_t flags, GraphExecHandle* out) {
  const std::lock_guard lock(mutex_);
  const auto graph = graph_of(handle);
  if (graph == nullptr || captures_.is_capturing(*graph)) return Status::kInvalidValue;
  auto exec = std::make_shared<GraphExec>(*graph, flags);
  *out = exec.get();
  graph_execs_.emplace(exec.get(), std::move(exec));
  return Status::kOk;
}

Status Machine::destroy_graph_exec(GraphExecHandle handle) {
  std::shared_ptr<GraphExec> exec;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  exec = graph_exec_of(handle);
  return graph_execs_.erase(handle) != 0 ? Status::kOk : Status::kInvalidValue;
}

Status Machine::update_graph_exec(GraphExecHandle handle, GraphHandle graph_handle) {
  std::shared_ptr<GraphExec> before;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto exec = graph_exec_of(handle);
  const auto graph = graph_of(graph_handle);
  if (exec == nullptr || graph == nullptr || captures_.is_capturing(*graph))
    return Status::kInvalidValue;
  if (!exec->has_form_of(*graph)) return Status::kIllegalState;
  before = std::make_shared<GraphExec>(*graph, exec->flags());
  before->busy_until_ns = exec->busy_until_ns;
  std::swap(*before, *exec);
  return Status::kOk;
}

Status Machine::set_graph_exec_kernel(GraphExecHandle handle, GraphNodeHandle node,
                                      GraphHandle kernel) {
  NodeWork before;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto exec = graph_exec_of(handle);
  const auto made = graph_of(kernel);
  const Graph* holder = nullptr;
  for (const auto& [graph_handle, graph] : graphs_) {
    if (graph->find(node) != nullptr) holder = graph.get();
  }
  if (exec == nullptr || made == nullptr || made->nodes().size() != 1 || holder == nullptr ||
      !exec->has_form_of(*holder)) {
    return Status::kInvalidValue;
  }
  before = exec->exchange_work(holder->position_of(holder->find(node)), made->nodes()[0]->work);
  return Status::kOk;
}

Status Machine::graph_exec_flags(GraphExecHandle handle, std::uint64_t* out) {
  const std::lock_guard lock(mutex_);
  const auto exec = graph_exec_of(handle);
  if (exec == nullptr) return Status::kInvalidValue;
  *out = exec->flags();
  return Status::kOk;
}

Status Machine::launch_graph(int device, StreamHandle stream, GraphExecHandle handle) {
  std::shared_ptr<GraphExec> exec;
  {
    const std::lock_guard lock(mutex_);
    exec = graph_exec_of(handle);
    Stream* target = timeline_.find_stream(device, stream);
    if (exec == nullptr) return Status::kInvalidValue;
    if (target == nullptr) return Status::kInvalidHandle;
    const NodeWork work = [exec](Machine& machine, int on, StreamHandle lane) {
      return machine.run_graph(on, lane, *exec);
    };
    if (const auto outcome = record_or_refuse(*target, NodeKind::kChildGraph, work)) {
      if (*outcome == Status::kOk) target->capture_tips.front()->child = exec->graph();
      return *outcome;
    }
    ++counters_.graph_launches;
  }
  return run_graph(device, stream, *exec);
}

// Steps take effect in order. In virtual time a step begins when its dependencies have ended, so
// independent steps overlap.
Status Machine::run_graph(int device, StreamHandle stream, GraphExec& exec) {
  std::uint64_t start_ns = 0;
  {
    const std::lock_guard lock(mutex_);
    const Stream* target = timeline_.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    start_ns = std::max(timeline_.earliest_start_ns(*target), exec.busy_until_ns);
  }
  std::map<int, StreamHandle> lanes;  // by device: the stream on which steps run
  std::vector<std::uint64_t> ends_ns;
  std::uint64_t end_ns = start_ns;
  Status status = Status::kOk;
  for (const GraphExec::Step& step : exec.steps()) {
    std::uint64_t ready_ns = start_ns;
    for (const std::size_t dependency : step.dependencies)
      ready_ns = std::max(ready_ns, ends_ns[dependency]);
    if (!lanes.contains(step.device))
      lanes[step.device] = create_stream(step.device, 0, /*blocking=*/false, 0);
    status = run_step(step, lanes[step.device], &ready_ns);
    if (status != Status::kOk) break;
    ends_ns.push_back(ready_ns);
    end_ns = std::max(end_ns, ready_ns);
  }
  for (const auto& [lane_device, lane] : lanes) destroy_stream(lane);
  const std::lock_guard lock(mutex_);
  if (Stream* target = timeline_.find_stream(device, stream))
    target->busy_until_ns = std::max(target->busy_until_ns, end_ns);
  exec.busy_until_ns = std::max(exec.busy_until_ns, end_ns);
  return status;
}

Status Machine::run_step(const GraphExec::Step& step, StreamHandle lane, std::uint64_t* time_ns) {
  if (!step.work) return Status::kOk;
  {
    const std::lock_guard lock(mutex_);
    timeline_.find_stream(step.device, lane)->busy_until_ns = *time_ns;
  }
  const Status status = step.work(*this, step.device, lane);
  const std::lock_guard lock(mutex_);
  *time_ns = timeline_.find_stream(step.device, lane)->busy_until_ns;
  return status;
}

}  // namespace uvmsim
