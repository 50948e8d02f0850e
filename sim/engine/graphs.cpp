#include "sim/engine/graphs.hpp"

#include <algorithm>
#include <map>

#include "sim/engine/machine_state.hpp"

namespace uvmsim {
namespace {

GraphHandle add_graph(MachineState& state, const std::shared_ptr<Graph>& graph) {
  state.graphs.emplace(graph.get(), graph);
  return graph.get();
}

std::shared_ptr<Graph> graph_of(MachineState& state, GraphHandle handle) {
  const auto it = state.graphs.find(handle);
  if (it != state.graphs.end()) return it->second;
  for (const auto& [parent, graph] : state.graphs) {
    if (auto child = graph->find_child(handle)) return child;
  }
  return nullptr;
}

std::shared_ptr<GraphExec> graph_exec_of(MachineState& state, GraphExecHandle handle) {
  const auto it = state.graph_execs.find(handle);
  return it == state.graph_execs.end() ? nullptr : it->second;
}

}  // namespace

// ---- capture

Status Graphs::begin_capture(int device, StreamHandle stream, CaptureMode mode) {
  const auto state = shared_.lock();
  Stream* target = state->timeline.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  const Status status = state->captures.begin(*target, mode);
  if (status == Status::kOk) add_graph(*state, target->capture->graph);
  return status;
}

Status Graphs::end_capture(int device, StreamHandle stream, GraphHandle* out) {
  std::shared_ptr<Graph> graph;  // graph of a failed capture; destroyed without the lock
  const auto state = shared_.lock();
  Stream* target = state->timeline.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  const Status status = state->captures.end(*target, &graph);
  *out = status == Status::kOk ? graph.get() : nullptr;
  if (status != Status::kOk && graph != nullptr) state->graphs.erase(graph.get());
  return status;
}

Status Graphs::capture_info(int device, StreamHandle stream, CaptureInfo* out) {
  const auto state = shared_.lock();
  const Stream* target = state->timeline.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  *out = {};
  const Status status = state->captures.state(*target, &out->state);
  if (status == Status::kOk && out->state == CaptureState::kActive) {
    out->id = target->capture->id;
    out->graph = target->capture->graph.get();
    out->dependencies = target->capture_tips.data();
    out->dependency_count = target->capture_tips.size();
  }
  return status;
}

Status Graphs::update_capture_dependencies(int device, StreamHandle stream,
                                           const std::vector<GraphNodeHandle>& nodes,
                                           DependencyUpdate update) {
  const auto state = shared_.lock();
  Stream* target = state->timeline.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  return state->captures.update_dependencies(*target, nodes, update);
}

Status Graphs::admit_unsafe_call() {
  return shared_.lock()->captures.admit_unsafe_call();
}

Status Graphs::refuse_beside_captures() {
  const auto state = shared_.lock();
  const Status status = state->captures.admit_unsafe_call();
  return status == Status::kOk ? state->captures.refuse_beside() : status;
}

Status Graphs::refuse_capture(int device, StreamHandle stream) {
  const auto state = shared_.lock();
  Stream* target = state->timeline.find_stream(device, stream);
  if (target == nullptr) return Status::kInvalidHandle;
  return state->captures.record_or_refuse(*target, NodeKind::kEmpty, nullptr).value_or(Status::kOk);
}

// ---- graphs

GraphHandle Graphs::create() {
  const auto state = shared_.lock();
  return add_graph(*state, std::make_shared<Graph>());
}

Status Graphs::clone(GraphHandle handle, GraphHandle* out) {
  const auto state = shared_.lock();
  const auto graph = graph_of(*state, handle);
  if (graph == nullptr) return Status::kInvalidValue;
  *out = add_graph(*state, graph->clone());
  return Status::kOk;
}

Status Graphs::destroy(GraphHandle handle) {
  std::shared_ptr<Graph> graph;  // destroyed without the lock
  const auto state = shared_.lock();
  graph = graph_of(*state, handle);
  // A capture owns its graph, and a parent graph owns its child.
  if (graph == nullptr || !state->graphs.contains(handle) || state->captures.is_capturing(*graph))
    return Status::kInvalidValue;
  state->graphs.erase(handle);
  return Status::kOk;
}

Status Graphs::add_node(GraphHandle handle, NodeKind kind, int device, NodeWork work,
                        const std::vector<GraphNodeHandle>& dependencies, GraphNodeHandle* out) {
  const auto state = shared_.lock();
  const auto graph = graph_of(*state, handle);
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

Status Graphs::destroy_node(GraphNodeHandle handle) {
  std::unique_ptr<GraphNode> removed;  // destroyed without the lock
  const auto state = shared_.lock();
  for (const auto& [graph_handle, graph] : state->graphs) {
    const GraphNode* node = graph->find(handle);
    if (node == nullptr) continue;
    if (state->captures.is_capturing(*graph)) return Status::kInvalidValue;
    removed = graph->remove(node);
    return Status::kOk;
  }
  return Status::kInvalidValue;
}

Status Graphs::find_in_clone(GraphNodeHandle original, GraphHandle clone, GraphNodeHandle* out) {
  const auto state = shared_.lock();
  const auto graph = graph_of(*state, clone);
  GraphNode* copy = graph != nullptr ? graph->find_copy_of(original) : nullptr;
  if (copy == nullptr) return Status::kInvalidValue;
  *out = copy;
  return Status::kOk;
}

Status Graphs::visit(GraphHandle handle, const std::function<void(const Graph&)>& visit) {
  const auto state = shared_.lock();
  const auto graph = graph_of(*state, handle);
  if (graph == nullptr) return Status::kInvalidValue;
  visit(*graph);
  return Status::kOk;
}

Status Graphs::visit_node(GraphNodeHandle handle,
                          const std::function<void(const Graph&, const GraphNode&)>& visit) {
  const auto state = shared_.lock();
  const Graph* holder = nullptr;
  for (const auto& [graph_handle, graph] : state->graphs) {
    holder = graph->find_holder(handle);
    if (holder != nullptr) break;
  }
  if (holder == nullptr) return Status::kInvalidValue;
  visit(*holder, *holder->find(handle));
  return Status::kOk;
}

// ---- executable graphs

Status Graphs::instantiate(GraphHandle handle, std::uint64_t flags, GraphExecHandle* out) {
  const auto state = shared_.lock();
  const auto graph = graph_of(*state, handle);
  if (graph == nullptr || state->captures.is_capturing(*graph)) return Status::kInvalidValue;
  auto exec = std::make_shared<GraphExec>(*graph, flags);
  *out = exec.get();
  state->graph_execs.emplace(exec.get(), std::move(exec));
  return Status::kOk;
}

Status Graphs::destroy_exec(GraphExecHandle handle) {
  std::shared_ptr<GraphExec> exec;  // destroyed without the lock
  const auto state = shared_.lock();
  exec = graph_exec_of(*state, handle);
  return state->graph_execs.erase(handle) != 0 ? Status::kOk : Status::kInvalidValue;
}

Status Graphs::update_exec(GraphExecHandle handle, GraphHandle graph_handle) {
  std::shared_ptr<GraphExec> before;  // destroyed without the lock
  const auto state = shared_.lock();
  const auto exec = graph_exec_of(*state, handle);
  const auto graph = graph_of(*state, graph_handle);
  if (exec == nullptr || graph == nullptr || state->captures.is_capturing(*graph))
    return Status::kInvalidValue;
  if (!exec->has_form_of(*graph)) return Status::kIllegalState;
  before = std::make_shared<GraphExec>(*graph, exec->flags());
  before->busy_until_ns = exec->busy_until_ns;
  std::swap(*before, *exec);
  return Status::kOk;
}

Status Graphs::set_exec_kernel(GraphExecHandle handle, GraphNodeHandle node, GraphHandle kernel) {
  NodeWork before;  // destroyed without the lock
  const auto state = shared_.lock();
  const auto exec = graph_exec_of(*state, handle);
  const auto made = graph_of(*state, kernel);
  const Graph* holder = nullptr;
  for (const auto& [graph_handle, graph] : state->graphs) {
    if (graph->find(node) != nullptr) holder = graph.get();
  }
  if (exec == nullptr || made == nullptr || made->nodes().size() != 1 || holder == nullptr ||
      !exec->has_form_of(*holder)) {
    return Status::kInvalidValue;
  }
  before = exec->exchange_work(holder->position_of(holder->find(node)), made->nodes()[0]->work);
  return Status::kOk;
}

Status Graphs::exec_flags(GraphExecHandle handle, std::uint64_t* out) {
  const auto state = shared_.lock();
  const auto exec = graph_exec_of(*state, handle);
  if (exec == nullptr) return Status::kInvalidValue;
  *out = exec->flags();
  return Status::kOk;
}

Status Graphs::launch(int device, StreamHandle stream, GraphExecHandle handle) {
  std::shared_ptr<GraphExec> exec;
  {
    const auto state = shared_.lock();
    exec = graph_exec_of(*state, handle);
    Stream* target = state->timeline.find_stream(device, stream);
    if (exec == nullptr) return Status::kInvalidValue;
    if (target == nullptr) return Status::kInvalidHandle;
    const NodeWork work = [this, exec](int on, StreamHandle lane) { return run(on, lane, *exec); };
    if (const auto outcome =
            state->captures.record_or_refuse(*target, NodeKind::kChildGraph, work)) {
      if (*outcome == Status::kOk) target->capture_tips.front()->child = exec->graph();
      return *outcome;
    }
    ++state->counters.graph_launches;
  }
  return run(device, stream, *exec);
}

// Steps take effect in order. In virtual time a step begins when its dependencies have ended, so
// independent steps overlap.
Status Graphs::run(int device, StreamHandle stream, GraphExec& exec) {
  std::uint64_t start_ns = 0;
  {
    const auto state = shared_.lock();
    const Stream* target = state->timeline.find_stream(device, stream);
    if (target == nullptr) return Status::kInvalidHandle;
    start_ns = std::max(state->timeline.earliest_start_ns(*target), exec.busy_until_ns);
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
      lanes[step.device] = streams_.create_stream(step.device, 0, /*blocking=*/false, 0);
    status = run_step(step, lanes[step.device], &ready_ns);
    if (status != Status::kOk) break;
    ends_ns.push_back(ready_ns);
    end_ns = std::max(end_ns, ready_ns);
  }
  for (const auto& [lane_device, lane] : lanes) streams_.destroy_stream(lane);
  const auto state = shared_.lock();
  if (Stream* target = state->timeline.find_stream(device, stream))
    target->busy_until_ns = std::max(target->busy_until_ns, end_ns);
  exec.busy_until_ns = std::max(exec.busy_until_ns, end_ns);
  return status;
}

Status Graphs::run_step(const GraphExec::Step& step, StreamHandle lane, std::uint64_t* time_ns) {
  if (!step.work) return Status::kOk;
  {
    const auto state = shared_.lock();
    state->timeline.find_stream(step.device, lane)->busy_until_ns = *time_ns;
  }
  const Status status = step.work(step.device, lane);
  const auto state = shared_.lock();
  *time_ns = state->timeline.find_stream(step.device, lane)->busy_until_ns;
  return status;
}

}  // namespace uvmsim
