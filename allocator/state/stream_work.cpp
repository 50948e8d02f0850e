#include "allocator/state/stream_work.hpp"

#include <algorithm>
#include <new>
#include <set>

namespace uvm {
namespace {

// Returns whether a wait with this result means that the work is over. An unusable device runs no
// work.
bool is_through(const RuntimeStatus& wait) {
  return wait.ok() || wait.error == RuntimeError::kNotUsable;
}

}  // namespace

StreamWork::StreamWork(const DeviceRuntime& runtime, EventPool& events)
    : runtime_(runtime),
      events_(events),
      over_(std::make_unique<std::atomic<std::uint64_t>[]>(
          static_cast<std::size_t>(runtime.device_count()))) {}

bool StreamWork::record(const std::vector<DeviceStream>& streams, std::vector<Fence>* fences) {
  std::set<int> unfenced;
  {
    const CaptureGuard::Hold hold(captures_);
    if (std::any_of(streams.begin(), streams.end(),
                    [&](const DeviceStream& use) { return is_captured(use); })) {
      return false;
    }
    fences->reserve(fences->size() + streams.size());
    for (const DeviceStream& use : streams) {
      if (use.is_gone() && is_over(use)) continue;
      RuntimeStatus status{RuntimeError::kInvalidValue, 0, "another thread's stream",
                           "record_event"};
      EventHandle event = nullptr;
      if (use.can_be_named()) event = events_.record(use, &status);
      if (event != nullptr) {
        fences->push_back({use, event});
      } else if (status.error != RuntimeError::kNotUsable) {
        unfenced.insert(use.device);
      }
    }
  }
  // If a stream was destroyed, belongs to another thread or refuses an event, waits for its device.
  return std::all_of(unfenced.begin(), unfenced.end(),
                     [&](int device) { return wait_for_device(device); });
}

void StreamWork::release(std::vector<Fence>* fences) {
  for (const Fence& fence : *fences) release(fence);
  fences->clear();
}

bool StreamWork::is_over(const Fence& fence) const {
  const RuntimeError error = runtime_.query_event(fence.stream.device, fence.event).error;
  return error != RuntimeError::kNotReady && error != RuntimeError::kCapture;
}

bool StreamWork::are_over(const std::vector<Fence>& fences) const {
  return std::all_of(fences.begin(), fences.end(),
                     [&](const Fence& fence) { return is_over(fence); });
}

bool StreamWork::wait_for(const Fence& fence) {
  return is_through(runtime_.synchronize_event(fence.stream.device, fence.event)) ||
         wait_for_device(fence.stream.device);
}

bool StreamWork::wait_for_device(int device) {
  const std::uint64_t gone_before = forgotten_.load(std::memory_order_relaxed);
  if (!is_through(synchronize(device))) return false;
  note_over(device, gone_before);
  return true;
}

void StreamWork::note_over(int device, std::uint64_t gone_before) {
  std::atomic<std::uint64_t>& over = over_[static_cast<std::size_t>(device)];
  std::uint64_t known = over.load(std::memory_order_relaxed);
  while (known < gone_before && !over.compare_exchange_weak(known, gone_before)) {
  }
}

void StreamWork::note_idle(int device) {
  {
    const RankedGuard lock(mutex_);
    std::erase_if(before_captures_,
                  [&](const Fence& each) { return each.stream.device == device; });
  }
  note_over(device, forgotten_.load(std::memory_order_relaxed));
}

RuntimeStatus StreamWork::synchronize(int device) const {
  const CaptureGuard::Hold hold(captures_);
  if (hold.captures()) return {RuntimeError::kCapture, 0, "a stream captures", "wait_for_device"};
  return runtime_.synchronize_device(device);
}

bool StreamWork::is_captured(const DeviceStream& stream) const {
  if (!stream.can_be_named()) return false;
  bool is_captured = false;
  const RuntimeStatus status = runtime_.is_capturing(stream.device, stream.handle, &is_captured);
  return is_captured || status.error == RuntimeError::kCapture;
}

RuntimeStatus StreamWork::wait_for(const DeviceStream& stream) {
  RuntimeStatus status;
  if (!stream.can_be_named()) {
    status = synchronize(stream.device);
  } else if (!synchronize_unless_captured(stream, &status)) {
    const std::optional<Fence> before = before_capture_of(stream);
    // The driver would refuse a wait for the stream and invalidate the capture.
    if (!before) return {RuntimeError::kCapture, 0, "the stream is captured", "synchronize_stream"};
    status = runtime_.synchronize_event(stream.device, before->event);
  }
  return is_through(status) ? RuntimeStatus{} : status;
}

bool StreamWork::synchronize_unless_captured(const DeviceStream& stream,
                                             RuntimeStatus* status) const {
  const CaptureGuard::Hold hold(captures_);
  if (is_captured(stream)) return false;
  *status = runtime_.synchronize_stream(stream.device, stream.handle);
  return true;
}

void StreamWork::begin_capture(const DeviceStream& stream) {
  RuntimeStatus status;
  const EventHandle event = events_.record(stream, &status);
  if (event == nullptr) return;
  try {
    const RankedGuard lock(mutex_);
    before_captures_.push_back({stream, event});
  } catch (const std::bad_alloc&) {
    events_.release(stream.device, event);
  }
}

void StreamWork::end_capture(const DeviceStream& stream) noexcept {
  std::optional<Fence> ended;
  {
    const RankedGuard lock(mutex_);
    const auto found = find_capture(stream);
    if (found == before_captures_.end()) return;
    ended = *found;
    before_captures_.erase(found);
  }
  release(*ended);
}

std::optional<Fence> StreamWork::before_capture_of(const DeviceStream& stream) {
  const RankedGuard lock(mutex_);
  const auto found = find_capture(stream);
  return found == before_captures_.end() ? std::nullopt : std::optional(*found);
}

std::vector<Fence>::iterator StreamWork::find_capture(const DeviceStream& stream) {
  return std::find_if(before_captures_.begin(), before_captures_.end(),
                      [&](const Fence& each) { return each.stream == stream; });
}

DeviceStream StreamWork::forget(const DeviceStream& stream) {
  return {stream.device, stream.handle,
          DeviceStream::kFirstGone + forgotten_.fetch_add(1, std::memory_order_relaxed)};
}

bool StreamWork::is_over(const DeviceStream& gone) const {
  return gone.thread - DeviceStream::kFirstGone <
         over_[static_cast<std::size_t>(gone.device)].load(std::memory_order_relaxed);
}

bool StreamWork::order_after(const DeviceStream& stream, const Fence& fence) {
  const CaptureGuard::Hold hold(captures_);
  return events_.may_wait(stream) &&
         runtime_.stream_wait_event(stream.device, stream.handle, fence.event).ok();
}

bool StreamWork::order_after_blocking_streams(const DeviceStream& stream) {
  const CaptureGuard::Hold hold(captures_);
  const DeviceStream legacy{stream.device, nullptr, 0};
  return events_.may_wait(legacy) && events_.may_wait(stream) && events_.order(stream, legacy);
}

}  // namespace uvm
