// Sends plans of hints to the driver. Prefetches go through the I/O lane of their device, a
// non-blocking stream that uvmalloc owns. On the caller's stream a prefetch would wait for the
// caller's kernels, and the default stream refuses the batched calls. The lane waits for the stream
// that wrote the bytes; the stream that will use the bytes waits for the lane.
//
// A large copy is sent in pieces, alternately on the I/O lane and a second lane. The driver then
// prepares one piece while it copies the piece before. At the end the I/O lane waits for the second
// lane, so whoever waits for the I/O lane waits for all pieces.
//
// A hint that fails is never an error of the program: the failure is counted, and logged once.
// Thread-safe; the lock guards the lanes and is never held across a driver call.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "hints/advice_queue.hpp"
#include "hints/event_pool.hpp"
#include "hints/hint.hpp"
#include "hints/hint_counters.hpp"
#include "hints/prefetch_thread.hpp"
#include "runtime/ranked.hpp"
#include "storage/pages.hpp"

namespace uvm {

// The status of each hint, in the order of the plan.
using HintStatuses = std::array<RuntimeStatus, HintPlan::kMostHints>;

class HintSender {
 public:
  // `prefetch_blocks` (DeviceCapabilities): prefetches return only after the copy, so the sender
  // calls them on a separate thread.
  HintSender(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters,
             bool prefetch_blocks = false);
  ~HintSender();
  HintSender(const HintSender&) = delete;
  HintSender& operator=(const HintSender&) = delete;

  // Called in a forked child, which has one thread: forgets the lanes, which belong to the parent.
  void abandon() noexcept UVM_NOT_ANALYSED;

  // Forgets the lanes of a device whose context was destroyed, which destroyed the lanes too.
  void forget_device(int device) noexcept;

  // Sends `plan` in order in the context of `device`. Prefetches start after the current work of
  // the producer; later work of the consumer starts after the prefetches. A stream that is being
  // captured is left out of this order, because an event from outside would invalidate the capture.
  // The calling thread does not wait. If prefetches block, the consumer does not wait either: a
  // page that has not arrived migrates when a kernel uses it.
  //
  // If the runtime refuses advice during a capture, the advice's status is success, and the first
  // send() after the capture sends it. Allocates nothing, so a lack of memory loses no plan.
  HintStatuses send(const HintPlan& plan, int device, DeviceStream producer = {},
                    DeviceStream consumer = {});

  // Discards the contents of a range that no work uses, and waits for the discard. After a failure
  // the contents may be unchanged.
  RuntimeStatus discard(int device, void* address, std::size_t size_bytes);

  // Waits until the sender's own thread has no prefetches left. Call this before giving memory back
  // to the driver, which may reuse the addresses.
  void finish_prefetches() noexcept;

  // Returns the device's I/O lane, or nullptr if it cannot be created. The first call creates it.
  StreamHandle lane(int device) { return lane_of(device, &Lanes::first); }

 private:
  struct Lanes {
    StreamHandle first = nullptr;
    StreamHandle second = nullptr;  // the second lane for pieces
  };

  StreamHandle lane_of(int device, StreamHandle Lanes::*which);
  bool note(const Hint& hint, const RuntimeStatus& status) noexcept;
  void note_late(const Hint& hint, const RuntimeStatus& status) noexcept;
  void send_deferred();
  RuntimeStatus advise(int device, const Hint& hint);
  RuntimeStatus prefetch(int device, const Hint& hint, StreamHandle lane_stream);
  RuntimeStatus prefetch_in_pieces(int device, const Hint& hint, StreamHandle lane_stream);

  const DeviceRuntime& runtime_;
  EventPool& events_;
  HintCounters& counters_;
  Ranked<std::mutex, LockRank::kLanes> mutex_;
  std::vector<Lanes> lanes_ UVM_GUARDED_BY(mutex_);  // by device
  AdviceQueue deferred_;
  std::unique_ptr<PrefetchThread> prefetch_thread_;  // nullptr: prefetches do not block
};

}  // namespace uvm
