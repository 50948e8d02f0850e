#include "hints/oversubscription/device_clock.hpp"

#include <utility>

namespace uvm::live {

DeviceClock::~DeviceClock() {
  for (const Mark& mark : {before_, last_}) {
    if (mark.event != nullptr) (void)runtime_.destroy_event(device_, mark.event);
  }
}

void DeviceClock::mark() {
  std::swap(before_, last_);
  if (last_.event == nullptr && !runtime_.create_timed_event(device_, &last_.event).ok())
    last_.event = nullptr;
  last_.is_recorded =
      last_.event != nullptr && runtime_.record_event(device_, last_.event, stream_.handle).ok();
  last_.host_time = runtime_.now();
}

std::optional<StepClock::Time> DeviceClock::between_marks() {
  const Time by_host = last_.host_time - before_.host_time;
  if (!before_.is_recorded || !last_.is_recorded) return by_host;
  Time time{};
  const RuntimeStatus status = runtime_.time_between(device_, before_.event, last_.event, &time);
  if (status.error == RuntimeError::kNotReady) return std::nullopt;
  return status.ok() ? time : by_host;
}

}  // namespace uvm::live
