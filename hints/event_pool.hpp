// Events of one runtime, for reuse. Thread-safe; the lock guards the free lists and is never held
// across a driver call. The destructor destroys the events that were released.
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

  // For a forked child, which has one thread: forgets the events, which belong to the parent.
  void abandon() noexcept UVM_NOT_ANALYSED { events_.clear(); }

  // For a device whose context is gone: forgets its events, which are gone too. No caller may hold
  // one.
  void forget_device(int device) noexcept;

  // Returns an event of the stream's device that it has recorded on the stream. Returns nullptr,
  // and the reason in `*status`, if the runtime refuses or there is no memory. The calling thread
  // must be able to name the stream.
  EventHandle record(const DeviceStream& stream, RuntimeStatus* status) noexcept;

  // Takes back an event that nothing waits for any more.
  void release(int device, EventHandle event) noexcept;

  // Whether the calling thread may now record an event on the stream, or make the stream wait for
  // one.
  bool may_wait(const DeviceStream& stream) const;
  // Lets later work of `waiting` start after the work so far of `before`. may_wait() must be true
  // for both. Returns false if the runtime refuses.
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
