// The time that a device takes between marks on the streams of a program, by events. If the runtime
// has no events with timing, the host's clock at the marks stands for it.
//
// Not thread-safe: LivePlanner's sending lock guards it, and is held across these calls.
#pragma once

#include <uvmalloc/device_runtime.hpp>
#include "hints/oversubscription/thrash_detector.hpp"

namespace uvm::live {

class DeviceClock final : public StepClock {
 public:
  DeviceClock(const DeviceRuntime& runtime, int device) : runtime_(runtime), device_(device) {}
  ~DeviceClock() override;
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  // In a forked child: the events are the parent's.
  void abandon() noexcept { before_.event = last_.event = nullptr; }

  // The stream whose work so far the next mark follows.
  void begin(const DeviceStream& stream) { stream_ = stream; }

  void mark() override;
  std::optional<Time> between_marks() override;

 private:
  struct Mark {
    EventHandle event = nullptr;
    bool is_recorded = false;  // the event is this mark's
    Time host_time{};
  };

  const DeviceRuntime& runtime_;
  const int device_;
  DeviceStream stream_;
  Mark before_;
  Mark last_;
};

}  // namespace uvm::live
