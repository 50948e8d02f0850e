#include <uvmalloc/hints/event_pool.hpp>

namespace uvm {

EventPool::~EventPool() {
  for (std::size_t device = 0; device < free_.size(); ++device) {
    for (EventHandle event : free_[device]) runtime_.destroy_event(static_cast<int>(device), event);
  }
}

EventHandle EventPool::record(const DeviceStream& stream, RuntimeStatus* status) {
  const int device = stream.device;
  EventHandle event = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto& free = free_.at(static_cast<std::size_t>(device));
    if (!free.empty()) {
      event = free.back();
      free.pop_back();
    }
  }
  if (event == nullptr) {
    *status = runtime_.create_event(device, &event);
    if (!status->ok()) return nullptr;
  }
  *status = runtime_.record_event(device, event, stream.handle);
  if (status->ok()) return event;
  release(device, event);
  return nullptr;
}

void EventPool::release(int device, EventHandle event) {
  std::lock_guard lock(mutex_);
  free_.at(static_cast<std::size_t>(device)).push_back(event);
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
  // The wait has taken the event's present state; recording it again elsewhere does not change
  // that.
  release(before.device, event);
  return status.ok();
}

}  // namespace uvm
