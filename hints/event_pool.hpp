// Events of one runtime, for reuse. Thread-safe; the lock guards the free lists and is never held
// across a driver call. The destructor destroys the events, unless the runtime has become unusable.
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

  // In a forked child, which has one thread: the events are the parent's.
  void abandon() noexcept UVM_NOT_ANALYSED { events_.clear(); }

  // The device's context is gone, and its events with it. Nobody may hold one.
  void forget_device(int device) noexcept;

  // An event of the stream's device, recorded on the stream now. nullptr, and why in `*status`: the
  // runtime refuses, or there is no memory. The calling thread must be able to name the stream.
  EventHandle record(const DeviceStream& stream, RuntimeStatus* status) noexcept;

  // Returns an event that nothing waits for any more.
  void release(int device, EventHandle event) noexcept;

  // Whether the calling thread can record an event on the stream, or make it wait for one, now.
  bool may_wait(const DeviceStream& stream) const;
  // Later work of `waiting` starts after the work so far of `before`; both may wait. False: the
  // runtime refuses.
  bool order(const DeviceStream& waiting, const DeviceStream& before);

 private:
  struct Events {
    std::vector<EventHandle> free;  // with room for all that were made
    std::size_t made = 0;
  };
  RuntimeStatus make(int device, EventHandle* out) noexcept;

  const DeviceRuntime& runtime_;
  Ranked<std::mutex, LockRank::kEvents> mutex_;
  std::vector<Events> events_ UVM_GUARDED_BY(mutex_);  // by device
};

}  // namespace uvm
