#include "sim/engine/streams.hpp"

#include "sim/engine/machine_state.hpp"
#include "sim/engine/work_trace.hpp"

namespace uvmsim {

StreamHandle Streams::create_stream(int device, unsigned flags, bool blocking, int priority) {
  return shared_.lock()->timeline.create_stream(device, flags, blocking, priority);
}

Status Streams::destroy_stream(StreamHandle handle) {
  std::vector<std::shared_ptr<Graph>> graphs;  // of ended captures; destroyed without the lock
  const auto state = shared_.lock();
  if (Stream* stream = state->timeline.find_stream(kHost, handle))
    state->end_capture_of(*stream, &graphs);
  return state->timeline.destroy_stream(handle) ? Status::kOk : Status::kInvalidHandle;
}

std::optional<Stream> Streams::find_stream(int device, StreamHandle handle) {
  const auto state = shared_.lock();
  const Stream* stream = state->timeline.find_stream(device, handle);
  if (stream == nullptr) return std::nullopt;
  return *stream;
}

Status Streams::query_stream(int device, StreamHandle handle) {
  const auto state = shared_.lock();
  const Stream* stream = state->timeline.find_stream(device, handle);
  if (stream == nullptr) return Status::kInvalidHandle;
  if (const Status status = state->captures.admit_wait(*stream); status != Status::kOk)
    return status;
  return state->timeline.query(state->timeline.completion_ns(*stream)) ? Status::kOk
                                                                       : Status::kNotReady;
}

Status Streams::wait_for_stream(int device, StreamHandle handle) {
  auto state = shared_.lock();
  const Stream* stream = state->timeline.find_stream(device, handle);
  if (stream == nullptr) return Status::kInvalidHandle;
  if (const Status status = state->captures.admit_wait(*stream); status != Status::kOk)
    return status;
  state->timeline.wait_until(state->timeline.completion_ns(*stream));
  state.unlock();
  WorkTrace::order(device, handle, nullptr, TracedOrder::kHostForStream);
  return Status::kOk;
}

Status Streams::wait_for_device(int device) {
  auto state = shared_.lock();
  if (const Status status = state->captures.admit_device_wait(device); status != Status::kOk)
    return status;
  state->timeline.wait_until(state->timeline.device_completion_ns(device));
  state.unlock();
  WorkTrace::order(device, nullptr, nullptr, TracedOrder::kHostForDevice);
  return Status::kOk;
}

bool Streams::is_busy(int device) {
  const auto state = shared_.lock();
  return state->timeline.device_completion_ns(device) > state->timeline.now_ns();
}

EventHandle Streams::create_event(int device, unsigned flags, bool timing) {
  return shared_.lock()->timeline.create_event(device, flags, timing);
}

Status Streams::destroy_event(EventHandle handle) {
  return shared_.lock()->timeline.destroy_event(handle) ? Status::kOk : Status::kInvalidHandle;
}

std::optional<unsigned> Streams::event_flags(EventHandle handle) {
  const auto state = shared_.lock();
  const Event* event = state->timeline.find_event(handle);
  return event == nullptr ? std::nullopt : std::optional(event->flags);
}

Status Streams::record_event(int device, EventHandle event, StreamHandle stream, EventScope scope) {
  auto state = shared_.lock();
  Event* recorded = state->timeline.find_event(event);
  Stream* source = state->timeline.find_stream(device, stream);
  // An event belongs to the device it was made on.
  if (recorded == nullptr || source == nullptr || recorded->device != source->device) {
    return Status::kInvalidHandle;
  }
  if (scope == EventScope::kExternal) {
    if (source->capture == nullptr) return Status::kInvalidValue;
    return *state->captures.record_or_refuse(
        *source, NodeKind::kEventRecord,
        [this, event](int on, StreamHandle lane) { return record_event(on, event, lane); });
  }
  const Status status = state->captures.admit_work(*source);
  if (status != Status::kOk) return status;
  if (source->capture != nullptr) {
    state->captures.record_event(*recorded, *source);
    return Status::kOk;
  }
  state->timeline.record(*recorded, *source);
  state.unlock();
  WorkTrace::order(device, stream, event, TracedOrder::kSignal);
  return Status::kOk;
}

Status Streams::make_stream_wait(int device, StreamHandle stream, EventHandle event,
                                 EventScope scope) {
  auto state = shared_.lock();
  const Event* awaited = state->timeline.find_event(event);
  Stream* waiting = state->timeline.find_stream(device, stream);
  if (awaited == nullptr || waiting == nullptr) return Status::kInvalidHandle;
  if (scope == EventScope::kExternal) {
    if (waiting->capture == nullptr) return Status::kInvalidValue;
    return *state->captures.record_or_refuse(
        *waiting, NodeKind::kEventWait,
        [this, event](int on, StreamHandle lane) { return make_stream_wait(on, lane, event); });
  }
  if (const Status status = state->captures.admit_work(*waiting); status != Status::kOk)
    return status;
  if (waiting->capture != nullptr || awaited->capture != nullptr)
    return state->captures.wait_event(*waiting, *awaited);
  state->timeline.wait(*waiting, *awaited);
  state.unlock();
  WorkTrace::order(device, stream, event, TracedOrder::kStreamForSignal);
  return Status::kOk;
}

Status Streams::query_event(EventHandle event) {
  const auto state = shared_.lock();
  const Event* queried = state->timeline.find_event(event);
  if (queried == nullptr) return Status::kInvalidHandle;
  if (const Status status = state->captures.admit_wait(*queried); status != Status::kOk)
    return status;
  return !queried->recorded || state->timeline.query(queried->time_ns) ? Status::kOk
                                                                       : Status::kNotReady;
}

Status Streams::wait_for_event(EventHandle event) {
  auto state = shared_.lock();
  const Event* awaited = state->timeline.find_event(event);
  if (awaited == nullptr) return Status::kInvalidHandle;
  if (const Status status = state->captures.admit_wait(*awaited); status != Status::kOk)
    return status;
  if (awaited->recorded) state->timeline.wait_until(awaited->time_ns);
  const int device = awaited->device;
  state.unlock();
  WorkTrace::order(device, nullptr, event, TracedOrder::kHostForSignal);
  return Status::kOk;
}

Status Streams::elapsed(EventHandle from, EventHandle to, std::int64_t* out_ns) {
  const auto state = shared_.lock();
  const Event* begin = state->timeline.find_event(from);
  const Event* end = state->timeline.find_event(to);
  for (const Event* event : {begin, end}) {
    if (event == nullptr || !event->recorded || !event->timing) return Status::kInvalidHandle;
    if (event->capture != nullptr) return Status::kCapturedEvent;
  }
  if (begin->device != end->device) return Status::kInvalidHandle;
  for (const Event* event : {begin, end}) {
    if (!state->timeline.query(event->time_ns)) return Status::kNotReady;
  }
  *out_ns = static_cast<std::int64_t>(end->time_ns) - static_cast<std::int64_t>(begin->time_ns);
  return Status::kOk;
}

std::uint64_t Streams::now_ns() {
  return shared_.lock()->timeline.now_ns();
}

void Streams::advance(std::uint64_t nanoseconds) {
  shared_.lock()->timeline.advance(nanoseconds);
}

}  // namespace uvmsim
