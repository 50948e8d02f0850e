// Events of one runtime, used again instead of made again. Thread-safe; its lock guards the free
// list only and is never held across a driver call. Events left at the end are destroyed unless the
// runtime has become unusable.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

class EventPool {
 public:
  EventPool(const DeviceRuntime& runtime, int devices)
      : runtime_(runtime), events_(static_cast<std::size_t>(devices)) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // In a forked child: the events are the parent's.
  void abandon() noexcept { events_.clear(); }

  // An event of the stream's device, recorded on it now. nullptr where the runtime refuses or there
  // is no memory to note it: `*status` says why. The calling thread must be able to name the
  // stream.
  EventHandle record(const DeviceStream& stream, RuntimeStatus* status) noexcept;

  // Gives back an event that nobody waits for any more.
  void release(int device, EventHandle event) noexcept;

  // Whether an event can be recorded on it, or waited for by it, now and here.
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
  std::vector<Events> events_;  // by device
};

}  // namespace uvm
