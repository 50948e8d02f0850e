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

}  // namespace uvm
