// Sends plans of hints to the machine. Prefetches go through the I/O lane of their device: a
// non-blocking stream of our own, because a prefetch on the caller's stream would wait for the
// caller's kernels, and because the default stream refuses the batched calls. The stream that will
// use the bytes waits for the lane; the lane waits for the stream that made them.
//
// A failing hint is never an error of the program: it is counted and said once. Thread-safe; holds
// a lock only to look up a lane and to note one, and none in a call of the driver.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include <uvmalloc/hints/advice_queue.hpp>
#include <uvmalloc/hints/event_pool.hpp>
#include <uvmalloc/hints/hint.hpp>
#include <uvmalloc/hints/hint_counters.hpp>
#include <uvmalloc/hints/prefetch_thread.hpp>
#include <uvmalloc/runtime/device_runtime.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

// Of each hint of a plan, in its order.
using HintStatuses = std::array<RuntimeStatus, HintPlan::kMostHints>;

class HintSender {
 public:
  // With `prefetch_blocks` (DeviceCapabilities) prefetches are asked for on a thread of the
  // sender's own.
  HintSender(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters,
             bool prefetch_blocks = false);
  ~HintSender();
  HintSender(const HintSender&) = delete;
  HintSender& operator=(const HintSender&) = delete;

  // In a forked child: the lanes are the parent's.
  void abandon() noexcept;

  // Sends `plan` in order in the context of `device`. With a producer, prefetches start after its
  // work so far; with a consumer, its later work starts after the prefetches; save where that
  // stream is being captured, which an event from outside would end. Neither waits on the calling
  // thread. Where prefetches block, no consumer waits: pages that have not arrived come when they
  // are used.
  //
  // Advice that the runtime refuses for a capture counts as sent here. It is sent with the first
  // hints after the capture.
  //  Takes no memory: a plan is sent, or its failures are returned, also where there is
  // none.
  HintStatuses send(const HintPlan& plan, int device, DeviceStream producer = {},
                    DeviceStream consumer = {});

  // Drops the contents of a range that nobody uses, and waits until they are gone. Where that fails
  // they may still be there.
  RuntimeStatus discard(int device, void* address, std::size_t size_bytes);

  // The I/O lane of a device, made where there is none yet; nullptr where none can be made.
  StreamHandle lane(int device);

 private:
  bool note(const Hint& hint, const RuntimeStatus& status) noexcept;
  void note_late(const Hint& hint, const RuntimeStatus& status) noexcept;
  void send_deferred();
  RuntimeStatus advise(int device, const Hint& hint);
  RuntimeStatus prefetch(int device, const Hint& hint, StreamHandle lane_stream);

  const DeviceRuntime& runtime_;
  EventPool& events_;
  HintCounters& counters_;
  Ranked<std::mutex, LockRank::kLanes> mutex_;  // guards lanes_
  std::vector<StreamHandle> lanes_;
  AdviceQueue deferred_;
  std::unique_ptr<PrefetchThread> prefetch_thread_;  // null where prefetches do not block
};

}  // namespace uvm
