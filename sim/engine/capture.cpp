#include "sim/engine/capture.hpp"

#include <algorithm>
#include <unordered_set>

#include "sim/engine/kernel_call.hpp"
#include "sim/engine/thread_context.hpp"
#include "sim/engine/timeline.hpp"

namespace uvmsim {
namespace {

void add_once(std::vector<GraphNode*>& nodes, GraphNode* node) {
  if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
}

// Returns whether the last nodes of the stream on which the capture began depend on all work of the
// other streams.
bool is_joined(const Capture& capture) {
  std::unordered_set<const GraphNode*> reached;
  std::vector<const GraphNode*> open(capture.origin->capture_tips.begin(),
                                     capture.origin->capture_tips.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const Stream* stream) {
    return std::all_of(stream->capture_tips.begin(), stream->capture_tips.end(),
                       [&](const GraphNode* tip) { return reached.contains(tip); });
  });
}

}  // namespace

bool Captures::is_capturing(const Graph& graph) const {
  return std::any_of(active_.begin(), active_.end(), [&](const std::shared_ptr<Capture>& capture) {
    return capture->graph.get() == &graph;
  });
}

Status Captures::begin(Stream& stream, CaptureMode mode) {
  if (stream.is_default) return Status::kCaptureUnsupported;
  if (stream.capture != nullptr) return Status::kIllegalState;
  auto capture = std::make_shared<Capture>(Capture{.id = next_id_++,
                                                   .mode = mode,
                                                   .thread = ThreadContext::current().number(),
                                                   .origin = &stream,
                                                   .streams = {},
                                                   .graph = std::make_shared<Graph>()});
  active_.push_back(capture);
  join(stream, capture);
  return Status::kOk;
}

void Captures::join(Stream& stream, const std::shared_ptr<Capture>& capture) {
  stream.capture = capture;
  capture->streams.push_back(&stream);
}

std::shared_ptr<Graph> Captures::detach(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    stream->capture = nullptr;
    stream->capture_tips.clear();
  }
  capture->streams.clear();
  capture->origin = nullptr;
  std::erase(active_, capture);
  return std::move(capture->graph);
}

Status Captures::end(Stream& stream, std::shared_ptr<Graph>* out) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return Status::kIllegalState;
  if (capture->origin != &stream) return Status::kCaptureUnmatched;
  if (capture->mode != CaptureMode::kRelaxed &&
      capture->thread != ThreadContext::current().number())
    return Status::kCaptureWrongThread;
  const bool joined = is_joined(*capture);
  *out = detach(capture);
  if (capture->invalidated) return Status::kCaptureInvalidated;
  return joined ? Status::kOk : Status::kCaptureUnjoined;
}

void Captures::forget(Stream& stream, std::shared_ptr<Graph>* out) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return;
  invalidate(*capture);
  if (capture->origin == &stream) {
    *out = detach(capture);
  } else {
    std::erase(capture->streams, &stream);
  }
}

// The legacy default stream is ordered with all blocking streams of its device, so its work would
// depend on work that is only recorded, not run.
bool Captures::conflicts_with_legacy_stream(const Stream& stream, const Capture& capture) const {
  return stream.is_default &&
         std::any_of(capture.streams.begin(), capture.streams.end(), [&](const Stream* captured) {
           return captured->blocking && captured->device == stream.device;
         });
}

Status Captures::admit_work(Stream& stream) {
  if (stream.capture != nullptr) {
    return stream.capture->invalidated ? Status::kCaptureInvalidated : Status::kOk;
  }
  Status status = Status::kOk;
  for (const auto& capture : active_) {
    if (!conflicts_with_legacy_stream(stream, *capture)) continue;
    invalidate(*capture);
    status = Status::kCaptureImplicit;
  }
  return status;
}

Status Captures::refuse_work(Stream& stream) {
  if (stream.capture->invalidated) return Status::kCaptureInvalidated;
  invalidate(*stream.capture);
  return Status::kCaptureUnsupported;
}

void Captures::record(Stream& stream, NodeKind kind, NodeWork work) {
  GraphNode* node = stream.capture->graph->add(kind, stream.device, std::move(work),
                                               std::move(stream.capture_tips));
  const KernelCall* call = ThreadContext::current().kernel_call;
  if (kind == NodeKind::kKernel && call != nullptr) node->call = call->shared_from_this();
  stream.capture_tips = {node};
}

std::optional<Status> Captures::record_or_refuse(Stream& stream, NodeKind kind,
                                                 const NodeWork& work) {
  const Status status = admit_work(stream);
  if (status != Status::kOk) return status;
  if (stream.capture == nullptr) return std::nullopt;
  if (!work) return refuse_work(stream);
  record(stream, kind, work);
  return Status::kOk;
}

std::optional<Status> Captures::refuse_blocking(Stream& stream) {
  if (const auto outcome = record_or_refuse(stream, NodeKind::kEmpty, nullptr)) return outcome;
  const Status status = admit_unsafe_call();
  return status == Status::kOk ? std::nullopt : std::optional(status);
}

Status Captures::admit_unsafe_call() {
  const CaptureMode own_mode = ThreadContext::current().capture_mode;
  if (own_mode == CaptureMode::kRelaxed) return Status::kOk;
  Status status = Status::kOk;
  for (const auto& capture : active_) {
    const bool is_own = capture->thread == ThreadContext::current().number();
    const bool forbids =
        is_own ? capture->mode != CaptureMode::kRelaxed
               : own_mode == CaptureMode::kGlobal && capture->mode == CaptureMode::kGlobal;
    if (!forbids) continue;
    invalidate(*capture);
    status = Status::kCaptureUnsupported;
  }
  return status;
}

Status Captures::refuse_beside() const {
  const bool forbidden =
      std::any_of(active_.begin(), active_.end(), [](const std::shared_ptr<Capture>& capture) {
        const bool is_own = capture->thread == ThreadContext::current().number();
        return is_own ? capture->mode != CaptureMode::kRelaxed
                      : capture->mode == CaptureMode::kGlobal;
      });
  return forbidden ? Status::kCaptureUnsupported : Status::kOk;
}

Status Captures::admit_wait(const Stream& stream) {
  if (stream.capture != nullptr) {
    if (stream.capture->invalidated) return Status::kCaptureInvalidated;
    invalidate(*stream.capture);
    return Status::kCaptureUnsupported;
  }
  for (const auto& capture : active_) {
    if (!conflicts_with_legacy_stream(stream, *capture)) continue;
    invalidate(*capture);
    return Status::kCaptureImplicit;
  }
  return admit_unsafe_call();
}

Status Captures::admit_wait(const Event& event) {
  if (event.capture != nullptr) {
    invalidate(*event.capture);
    return Status::kCapturedEvent;
  }
  return admit_unsafe_call();
}

Status Captures::admit_device_wait(int device) {
  Status status = Status::kOk;
  for (const auto& capture : active_) {
    const bool concerned =
        std::any_of(capture->streams.begin(), capture->streams.end(),
                    [&](const Stream* stream) { return stream->device == device; });
    if (!concerned) continue;
    invalidate(*capture);
    status = Status::kCaptureUnsupported;
  }
  return status == Status::kOk ? admit_unsafe_call() : status;
}

Status Captures::state(const Stream& stream, CaptureState* out) const {
  const bool unusable =
      stream.capture == nullptr &&
      std::any_of(active_.begin(), active_.end(), [&](const std::shared_ptr<Capture>& capture) {
        return conflicts_with_legacy_stream(stream, *capture);
      });
  if (unusable) return Status::kCaptureImplicit;
  *out = stream.capture == nullptr     ? CaptureState::kNone
         : stream.capture->invalidated ? CaptureState::kInvalidated
                                       : CaptureState::kActive;
  return Status::kOk;
}

// Adds no node: a stream that waits for the event depends on the current last nodes of the stream.
void Captures::record_event(Event& event, const Stream& stream) {
  event.capture = stream.capture;
  event.capture_tips = stream.capture_tips;
  event.recorded = true;
}

Status Captures::wait_event(Stream& stream, const Event& event) {
  if (event.capture == nullptr) {
    if (!event.recorded) return Status::kOk;
    invalidate(*stream.capture);
    return Status::kCaptureIsolation;
  }
  if (event.capture->has_ended()) {
    if (stream.capture != nullptr) invalidate(*stream.capture);
    return Status::kCapturedEvent;
  }
  if (event.capture->invalidated) return Status::kCaptureInvalidated;
  if (stream.is_default) {
    invalidate(*event.capture);
    return Status::kCaptureImplicit;
  }
  if (stream.capture == nullptr) join(stream, event.capture);
  if (stream.capture != event.capture) {
    invalidate(*stream.capture);
    invalidate(*event.capture);
    return Status::kCaptureMerge;
  }
  for (GraphNode* tip : event.capture_tips) add_once(stream.capture_tips, tip);
  return Status::kOk;
}

Status Captures::update_dependencies(Stream& stream, const std::vector<GraphNodeHandle>& nodes,
                                     DependencyUpdate update) {
  if (stream.capture == nullptr) return Status::kIllegalState;
  if (stream.capture->invalidated) return Status::kCaptureInvalidated;
  std::vector<GraphNode*> tips;
  if (update == DependencyUpdate::kAdd) tips = stream.capture_tips;
  for (const GraphNodeHandle handle : nodes) {
    GraphNode* node = stream.capture->graph->find(handle);
    if (node == nullptr) return Status::kInvalidValue;
    add_once(tips, node);
  }
  stream.capture_tips = std::move(tips);
  return Status::kOk;
}

}  // namespace uvmsim
