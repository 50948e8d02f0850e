// Sends plans of hints to the machine. Prefetches go through the I/O lane of their device: a
// non-blocking stream of our own, because a prefetch on the caller's stream would wait for the
// caller's kernels, and because the default stream refuses the batched calls. The stream that will
// use the bytes waits for the lane; the lane waits for the stream that made them.
//
// A large copy is sent in pieces, on the I/O lane and on a second lane in turn. The driver then
// prepares a piece while the piece before is copied. The I/O lane waits for the second lane, so
// the order of prefetches is that of the I/O lane alone.
//
// A failing hint is never an error of the program: it is counted and logged once. Thread-safe; the
// lock guards the lanes and is never held across a driver call.
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

// The status of each hint of a plan, in its order.
using HintStatuses = std::array<RuntimeStatus, HintPlan::kMostHints>;

class HintSender {
 public:
  // From here on a copy is sent in pieces. A smaller copy gains less than the calls cost.
  static constexpr std::size_t kLeastSplitBytes = 32 * kPageBytes;
  // Nothing is copied while the first piece is prepared. Each piece is twice the piece before, so
  // that its preparation is over when that piece has been copied.
  static constexpr std::size_t kFirstPieceBytes = kPageBytes;
  static constexpr std::size_t kMostPieceBytes = 32 * kPageBytes;

  // With `prefetch_blocks` (DeviceCapabilities) prefetches are asked for on a thread of the
  // sender's own.
  HintSender(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters,
             bool prefetch_blocks = false);
  ~HintSender();
  HintSender(const HintSender&) = delete;
  HintSender& operator=(const HintSender&) = delete;

  // In a forked child, which has one thread: the lanes are the parent's.
  void abandon() noexcept UVM_NOT_ANALYSED;

  // The device's context is gone, and the lanes with it.
  void forget_device(int device) noexcept;

  // Sends `plan` in order in the context of `device`. With a producer, prefetches start after its
  // work so far. With a consumer, its later work starts after the prefetches. A stream that is
  // being captured is left out of this order, because an event from outside would end its capture.
  // The calling thread does not wait. Where prefetches block, no consumer waits: pages that have
  // not arrived come when they are used.
  //
  // Advice that the runtime refuses for a capture counts as sent here. It is sent with the first
  // hints after the capture. Allocates nothing, so a lack of memory loses no plan.
  HintStatuses send(const HintPlan& plan, int device, DeviceStream producer = {},
                    DeviceStream consumer = {});

  // Drops the contents of a range that nothing uses, and waits until they are gone. After a failure
  // they may still be there.
  RuntimeStatus discard(int device, void* address, std::size_t size_bytes);

  // Waits until no prefetch is under way on the sender's own thread. Before memory is given back to
  // the driver, because its addresses may be other memory's then.
  void finish_prefetches() noexcept;

  // The I/O lane of a device, made at the first call; nullptr: it cannot be made.
  StreamHandle lane(int device) { return lane_of(device, &Lanes::first); }

 private:
  struct Lanes {
    StreamHandle first = nullptr;
    StreamHandle second = nullptr;  // for pieces
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
  std::unique_ptr<PrefetchThread> prefetch_thread_;  // null where prefetches do not block
};

}  // namespace uvm
