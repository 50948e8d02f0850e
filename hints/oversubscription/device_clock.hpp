// Measures, by events, the time that a device takes between marks on the streams of a program. If
// the runtime has no events with timing, uses the host's clock at the marks instead.
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

  // Called in a forked child: drops the events, which belong to the parent.
  void abandon() noexcept { before_.event = last_.event = nullptr; }

  // Sets the stream: the next mark follows all its current work.
  void begin(const DeviceStream& stream) { stream_ = stream; }

  void mark() override;
  std::optional<Time> between_marks() override;

 private:
  struct Mark {
    EventHandle event = nullptr;
    bool is_recorded = false;  // the event was recorded for this mark
    Time host_time{};
  };

  const DeviceRuntime& runtime_;
  const int device_;
  DeviceStream stream_;
  Mark before_;
  Mark last_;
};

}  // namespace uvm::live
