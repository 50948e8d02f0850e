// Sends the hints that the planner has decided, and corrects the ledger if the driver refuses one.
// Plans are made with the state lock and sent without it. Plans for arenas wait here, because
// arenas grow with locks under which the driver may not be called.
#pragma once

#include <mutex>
#include <vector>

#include "allocator/engine/heap_state.hpp"
#include "hints/hint_sender.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class HintDispatcher {
 public:
  HintDispatcher(Machine& machine, HeapState& state) : machine_(machine), state_(state) {}
  HintDispatcher(const HintDispatcher&) = delete;
  HintDispatcher& operator=(const HintDispatcher&) = delete;

  // Sends a plan and traces it. Allocates nothing. Returns the status of each hint.
  HintStatuses send(const HintPlan& plan, int device, DeviceStream producer = {},
                    DeviceStream consumer = {});
  // Forgets hints that were planned and will not be sent.
  static void forget(const LockedHeap& heap, const HintPlan& plan);
  static void forget_advice(Advice advice, SegmentPlacement* placement);

  // Hints for pages of arenas, which the stream `user` waits for; no stream for a host facade. Room
  // for `plans` of them is made first, because a plan that is never sent would leave the ledger
  // wrong.
  void prepare_pending(const LockedHeap& heap, std::size_t plans);
  void add_pending(const LockedHeap& heap, const HintPlan& plan, int device,
                   const DeviceStream& user);
  bool has_pending(const LockedHeap& heap) const {
    heap.proves(state_);
    return !pending_.empty();
  }
  // A device was reset: pages that hints are about may be gone.
  void forget_pending();
  // Sends all pending plans, unless there is a capture. `user` waits for the prefetches of its own
  // pages. One thread at a time.
  void send_pending(const DeviceStream& user = {});
  // Returns when no thread sends plans that were pending. Before pages go back that have left their
  // pools: a thread may send plans for blocks of others, which can be free by then.
  void finish_pending() { const RankedGuard lock(sending_); }

  // A plan that is sent at the end of its scope. Made before the state lock is taken.
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
