// Keeps the events of one runtime for reuse. Thread-safe; the lock guards the free lists and is
// never held across a driver call. The destructor destroys the events that were released.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "runtime/ranked.hpp"

namespace uvm {

class EventPool {
 public:
  EventPool(const DeviceRuntime& runtime, int devices)
      : runtime_(runtime), events_(static_cast<std::size_t>(devices)) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // Called in a forked child, which has one thread: forgets the events, which belong to the parent.
  void abandon() noexcept UVM_NOT_ANALYSED { events_.clear(); }

  // Forgets the events of a device whose context was destroyed, because that destroyed the events
  // too. No caller may hold an event of this device.
  void forget_device(int device) noexcept;

  // Records an event on the stream and returns the event, or nullptr with the reason in `*status`
  // if the runtime refuses or host memory runs out. stream.can_be_named() must be true.
  EventHandle record(const DeviceStream& stream, RuntimeStatus* status) noexcept;

  // Takes back an event that no stream and no thread waits for any more.
  void release(int device, EventHandle event) noexcept;

  // Returns whether the calling thread may record an event on the stream, or make the stream wait.
  bool may_wait(const DeviceStream& stream) const;
  // Makes later work of `waiting` start after the current work of `before`. may_wait() must be true
  // for both streams. Returns false if the runtime refuses.
  bool order(const DeviceStream& waiting, const DeviceStream& before);

 private:
  struct Events {
    std::vector<EventHandle> free;  // with capacity for all `made` events
    std::size_t made = 0;
  };
  RuntimeStatus make(int device, EventHandle* out) noexcept;

  const DeviceRuntime& runtime_;
  Ranked<std::mutex, LockRank::kEvents> mutex_;
  std::vector<Events> events_ UVM_GUARDED_BY(mutex_);  // by device
};

}  // namespace uvm
