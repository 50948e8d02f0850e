// Sends the hints that the planner has decided on, and corrects the ledger if the driver refuses a
// hint. Plans are made under the state lock and sent without it. Queues plans for arenas, because
// arenas grow under locks that forbid driver calls (invariant 13). Thread-safe.
#pragma once

#include <mutex>
#include <vector>

#include "allocator/state/heap_state.hpp"
#include "hints/hint_sender.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class HintDispatcher {
 public:
  HintDispatcher(Machine& machine, HeapState& state) : machine_(machine), state_(state) {}
  HintDispatcher(const HintDispatcher&) = delete;
  HintDispatcher& operator=(const HintDispatcher&) = delete;

  // Sends a plan and records it in the trace. Allocates nothing. Returns the status of each hint.
  HintStatuses send(const HintPlan& plan, int device, DeviceStream producer = {},
                    DeviceStream consumer = {});
  // Undoes the records of hints that were planned but will not be sent.
  static void forget(const LockedHeap& heap, const HintPlan& plan);
  static void forget_advice(Advice advice, SegmentPlacement* placement);

  // Adds hints for pages of arenas. The stream `user` waits for their prefetches; a host pool has
  // no such stream. Call prepare_pending() before planning, to make room for `plans` plans, because
  // a plan that is never sent would leave the ledger wrong.
  void prepare_pending(const LockedHeap& heap, std::size_t plans);
  void add_pending(const LockedHeap& heap, const HintPlan& plan, int device,
                   const DeviceStream& user);
  bool has_pending(const LockedHeap& heap) const {
    heap.proves(state_);
    return !pending_.empty();
  }
  // Drops all pending plans, because a device was reset and their pages may no longer exist.
  void forget_pending();
  // Sends all pending plans, except during a capture. The stream `user` waits for the prefetches of
  // its own pages. One thread at a time sends.
  void send_pending(const DeviceStream& user = {});
  // Waits until no thread is sending plans that were pending. Call this before pages that were
  // taken out of their pools go back to spans, because a thread may be sending hints for those
  // pages.
  void finish_pending() { const RankedGuard lock(sending_); }

  // Sends its plan at the end of its scope. Make it before the state lock is taken.
  class Later {
   public:
    Later(HintDispatcher& owner, int device) : owner_(owner), device_(device) {}
    ~Later() {
      if (!plan.empty()) owner_.send(plan, device_);
    }
    Later(const Later&) = delete;
    Later& operator=(const Later&) = delete;
    HintPlan plan;

   private:
    HintDispatcher& owner_;
    const int device_;
  };

 private:
  struct Pending {
    HintPlan plan;
    int device = 0;
    DeviceStream user;
  };
  static void forget(const LockedHeap& heap, const Hint& hint);
  void trace(const HintPlan& plan, const HintStatuses& statuses, int device);

  Machine& machine_;
  HeapState& state_;
  Ranked<std::mutex, LockRank::kPendingHints> sending_;
  std::vector<Pending> pending_ UVM_GUARDED_BY(state_);
};

}  // namespace uvm
