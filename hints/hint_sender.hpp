// Sends plans of hints to the machine. Prefetches go through the I/O lane of their device: a
// non-blocking stream of our own, because a prefetch on the caller's stream would wait for the
// caller's kernels, and because the default stream refuses the batched calls. The stream that will
// use the bytes waits for the lane; the lane waits for the stream that made them.
//
// A failing hint is never an error of the program: it is counted and logged once. Thread-safe; the
// lock guards the lanes and is never held across a driver call.
#pragma once

#include <array>
#include <mutex>
#include <vector>

#include <uvmalloc/hints/event_pool.hpp>
#include <uvmalloc/hints/hint.hpp>
#include <uvmalloc/hints/hint_counters.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

// The status of each hint of a plan, in its order.
using HintStatuses = std::array<RuntimeStatus, HintPlan::kMostHints>;

class HintSender {
 public:
  HintSender(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters);
  ~HintSender();
  HintSender(const HintSender&) = delete;
  HintSender& operator=(const HintSender&) = delete;

  // In a forked child, which has one thread: the lanes are the parent's.
  void abandon() noexcept UVM_NOT_ANALYSED { lanes_.clear(); }

  // Sends `plan` in order in the context of `device`. With a producer, prefetches start after its
  // work so far. With a consumer, its later work starts after the prefetches. A stream that is
  // being captured is left out of this order, because an event from outside would end its capture.
  // The calling thread does not wait. Allocates nothing, so a lack of memory loses no plan.
  HintStatuses send(const HintPlan& plan, int device, DeviceStream producer = {},
                    DeviceStream consumer = {});

  // Drops the contents of a range that nothing uses, and waits until they are gone. After a failure
  // they may still be there.
  RuntimeStatus discard(int device, void* address, std::size_t size_bytes);

  // The I/O lane of a device, made at the first call; nullptr: it cannot be made.
  StreamHandle lane(int device);

 private:
  bool note(const Hint& hint, const RuntimeStatus& status) noexcept;

  const DeviceRuntime& runtime_;
  EventPool& events_;
  HintCounters& counters_;
  Ranked<std::mutex, LockRank::kLanes> mutex_;
  std::vector<StreamHandle> lanes_ UVM_GUARDED_BY(mutex_);  // by device
};

}  // namespace uvm
