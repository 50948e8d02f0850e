// Streams, events and the virtual clock.
#include "sim/engine/machine.hpp"
#include "sim/engine/work_trace.hpp"

namespace uvmsim {

StreamHandle Machine::create_stream(int device, unsigned flags, bool blocking, int priority) {
  const std::lock_guard lock(mutex_);
  return timeline_.create_stream(device, flags, blocking, priority);
}

Status Machine::destroy_stream(StreamHandle handle) {
  std::shared_ptr<Graph> graph;  // of a capture on the stream; destroyed without the lock
  const std::lock_guard lock(mutex_);
  Stream* stream = timeline_.find_stream(kHost, handle);
  if (stream != nullptr && stream->capture != nullptr) {
    captures_.forget(*stream, &graph);
    if (graph != nullptr) graphs_.erase(graph.get());
  }
  return timeline_.destroy_stream(handle) ? Status::kOk : Status::kInvalidHandle;
}

std::optional<Stream> Machine::find_stream(int device, StreamHandle handle) {
  const std::lock_guard lock(mutex_);
  const Stream* stream = timeline_.find_stream(device, handle);
  if (stream == nullptr) return std::nullopt;
  return *stream;
}

Status Machine::query_stream(int device, StreamHandle handle) {
  const std::lock_guard lock(mutex_);
  const Stream* stream = timeline_.find_stream(device, handle);
  if (stream == nullptr) return Status::kInvalidHandle;
  if (const Status status = captures_.admit_wait(*stream); status != Status::kOk) return status;
  return timeline_.query(timeline_.completion_ns(*stream)) ? Status::kOk : Status::kNotReady;
}

Status Machine::wait_for_stream(int device, StreamHandle handle) {
  std::unique_lock lock(mutex_);
  const Stream* stream = timeline_.find_stream(device, handle);
  if (stream == nullptr) return Status::kInvalidHandle;
  if (const Status status = captures_.admit_wait(*stream); status != Status::kOk) return status;
  timeline_.wait_until(timeline_.completion_ns(*stream));
  lock.unlock();
  WorkTrace::order(device, handle, nullptr, TracedOrder::kHostForStream);
  return Status::kOk;
}

Status Machine::wait_for_device(int device) {
  std::unique_lock lock(mutex_);
  if (const Status status = captures_.admit_device_wait(device); status != Status::kOk)
    return status;
  timeline_.wait_until(timeline_.device_completion_ns(device));
  lock.unlock();
  WorkTrace::order(device, nullptr, nullptr, TracedOrder::kHostForDevice);
  return Status::kOk;
}

bool Machine::is_busy(int device) {
  const std::lock_guard lock(mutex_);
  return timeline_.device_completion_ns(device) > timeline_.now_ns();
}

EventHandle Machine::create_event(int device, unsigned flags, bool timing) {
  const std::lock_guard lock(mutex_);
  return timeline_.create_event(device, flags, timing);
}

Status Machine::destroy_event(EventHandle handle) {
  const std::lock_guard lock(mutex_);
  return timeline_.destroy_event(handle) ? Status::kOk : Status::kInvalidHandle;
}

std::optional<unsigned> Machine::event_flags(EventHandle handle) {
  const std::lock_guard lock(mutex_);
  const Event* event = timeline_.find_event(handle);
  return event == nullptr ? std::nullopt : std::optional(event->flags);
}

Status Machine::record_event(int device, EventHandle event, StreamHandle stream, EventScope scope) {
  std::unique_lock lock(mutex_);
  Event* recorded = timeline_.find_event(event);
  Stream* source = timeline_.find_stream(device, stream);
  // An event belongs to the device it was made on.
  if (recorded == nullptr || source == nullptr || recorded->device != source->device) {
    return Status::kInvalidHandle;
  }
  if (scope == EventScope::kExternal) {
    if (source->capture == nullptr) return Status::kInvalidValue;
    return *record_or_refuse(*source, NodeKind::kEventRecord,
                             [event](Machine& machine, int on, StreamHandle lane) {
                               return machine.record_event(on, event, lane);
                             });
  }
  const Status status = captures_.admit_work(*source);
  if (status != Status::kOk) return status;
  if (source->capture != nullptr) {
    captures_.record_event(*recorded, *source);
    return Status::kOk;
  }
  timeline_.record(*recorded, *source);
  lock.unlock();
  WorkTrace::order(device, stream, event, TracedOrder::kSignal);
  return Status::kOk;
}

Status Machine::make_stream_wait(int device, StreamHandle stream, EventHandle event,
                                 EventScope scope) {
  std::unique_lock lock(mutex_);
  const Event* awaited = timeline_.find_event(event);
  Stream* waiting = timeline_.find_stream(device, stream);
  if (awaited == nullptr || waiting == nullptr) return Status::kInvalidHandle;
  if (scope == EventScope::kExternal) {
    if (waiting->capture == nullptr) return Status::kInvalidValue;
    return *record_or_refuse(*waiting, NodeKind::kEventWait,
                             [event](Machine& machine, int on, StreamHandle lane) {
                               return machine.make_stream_wait(on, lane, event);
                             });
  }
  if (const Status status = captures_.admit_work(*waiting); status != Status::kOk) return status;
  if (waiting->capture != nullptr || awaited->capture != nullptr)
    return captures_.wait_event(*waiting, *awaited);
  timeline_.wait(*waiting, *awaited);
  lock.unlock();
  WorkTrace::order(device, stream, event, TracedOrder::kStreamForSignal);
  return Status::kOk;
}

Status Machine::query_event(EventHandle event) {
  const std::lock_guard lock(mutex_);
  const Event* queried = timeline_.find_event(event);
  if (queried == nullptr) return Status::kInvalidHandle;
  if (const Status status = captures_.admit_wait(*queried); status != Status::kOk) return status;
  return !queried->recorded || timeline_.query(queried->time_ns) ? Status::kOk : Status::kNotReady;
}

Status Machine::wait_for_event(EventHandle event) {
  std::unique_lock lock(mutex_);
  const Event* awaited = timeline_.find_event(event);
  if (awaited == nullptr) return Status::kInvalidHandle;
  if (const Status status = captures_.admit_wait(*awaited); status != Status::kOk) return status;
  if (awaited->recorded) timeline_.wait_until(awaited->time_ns);
  const int device = awaited->device;
  lock.unlock();
  WorkTrace::order(device, nullptr, event, TracedOrder::kHostForSignal);
  return Status::kOk;
}

Status Machine::elapsed(EventHandle from, EventHandle to, std::int64_t* out_ns) {
  const std::lock_guard lock(mutex_);
  const Event* begin = timeline_.find_event(from);
  const Event* end = timeline_.find_event(to);
  for (const Event* event : {begin, end}) {
    if (event == nullptr || !event->recorded || !event->timing) return Status::kInvalidHandle;
    if (event->capture != nullptr) return Status::kCapturedEvent;
  }
  if (begin->device != end->device) return Status::kInvalidHandle;
  for (const Event* event : {begin, end}) {
    if (!timeline_.query(event->time_ns)) return Status::kNotReady;
  }
  *out_ns = static_cast<std::int64_t>(end->time_ns) - static_cast<std::int64_t>(begin->time_ns);
  return Status::kOk;
}

std::uint64_t Machine::now_ns() {
  const std::lock_guard lock(mutex_);
  return timeline_.now_ns();
}

void Machine::advance(std::uint64_t nanoseconds) {
  const std::lock_guard lock(mutex_);
  timeline_.advance(nanoseconds);
}

}  // namespace uvmsim
