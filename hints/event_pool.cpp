#include "hints/event_pool.hpp"

#include <new>

namespace uvm {

EventPool::~EventPool() {
  for (std::size_t device = 0; device < events_.size(); ++device) {
    for (EventHandle event : events_[device].free) {
      runtime_.destroy_event(static_cast<int>(device), event);
    }
  }
}

EventHandle EventPool::record(const DeviceStream& stream, RuntimeStatus* status) noexcept {
  const int device = stream.device;
  EventHandle event = nullptr;
  {
    const RankedGuard lock(mutex_);
    auto& free = events_[static_cast<std::size_t>(device)].free;
    if (!free.empty()) {
      event = free.back();
      free.pop_back();
    }
  }
  if (event == nullptr) {
    *status = make(device, &event);
    if (!status->ok()) return nullptr;
  }
  *status = runtime_.record_event(device, event, stream.handle);
  if (status->ok()) return event;
  release(device, event);
  return nullptr;
}

RuntimeStatus EventPool::make(int device, EventHandle* out) noexcept {
  const auto index = static_cast<std::size_t>(device);
  {
    // Reserves room for all events here, so that release() allocates nothing.
    const RankedGuard lock(mutex_);
    Events& events = events_[index];
    try {
      if (events.made == events.free.capacity()) events.free.reserve(2 * events.made + 1);
    } catch (const std::bad_alloc&) {
      return {RuntimeError::kOutOfMemory, 0, "no host memory", "create_event"};
    }
    ++events.made;
  }
  const RuntimeStatus status = runtime_.create_event(device, out);
  if (!status.ok()) {
    const RankedGuard lock(mutex_);
    --events_[index].made;
  }
  return status;
}

void EventPool::release(int device, EventHandle event) noexcept {
  const RankedGuard lock(mutex_);
  events_[static_cast<std::size_t>(device)].free.push_back(event);
}

void EventPool::forget_device(int device) noexcept {
  const RankedGuard lock(mutex_);
  Events& events = events_[static_cast<std::size_t>(device)];
  events.made -= events.free.size();
  events.free.clear();
}

bool EventPool::may_wait(const DeviceStream& stream) const {
  if (!stream.exists() || !stream.can_be_named()) return false;
  bool is_capturing = false;
  return runtime_.is_capturing(stream.device, stream.handle, &is_capturing).ok() && !is_capturing;
}

bool EventPool::order(const DeviceStream& waiting, const DeviceStream& before) {
  RuntimeStatus status;
  EventHandle event = record(before, &status);
  if (event == nullptr) return false;
  status = runtime_.stream_wait_event(waiting.device, waiting.handle, event);
  // The wait refers to this recording of the event; recording the event again does not change the
  // wait.
  release(before.device, event);
  return status.ok();
}

}  // namespace uvm
