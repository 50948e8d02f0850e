#include "allocator/state/hint_dispatcher.hpp"

#include <algorithm>

namespace uvm {

// Drops the planner's record that the hint was sent, so that its next plan sends the hint again.
void HintDispatcher::forget(const LockedHeap& heap, const Hint& hint) {
  if (hint.kind == HintKind::kPrefetch) {
    heap->ledger.set(hint.address, hint.size_bytes, Place::nowhere());
    return;
  }
  const Block* block = heap->pools.directory().find(hint.address);
  if (block == nullptr || block->kind != BlockKind::kPageGranular ||
      block->address() != hint.address) {
    return;
  }
  forget_advice(hint.advice, heap->pools.directory().placement_of(*block));
}

void HintDispatcher::forget(const LockedHeap& heap, const HintPlan& plan) {
  for (const Hint& hint : plan) forget(heap, hint);
}

void HintDispatcher::forget_advice(Advice advice, SegmentPlacement* placement) {
  switch (advice) {
    case Advice::kSetReadMostly:
    case Advice::kUnsetReadMostly:
      placement->read_mostly = advice == Advice::kUnsetReadMostly;
      break;
    case Advice::kSetPreferredLocation:
    case Advice::kUnsetPreferredLocation:
      placement->preferred = Place::nowhere();
      break;
    case Advice::kSetAccessedBy:
    case Advice::kUnsetAccessedBy:
      placement->accessed_by = Place::nowhere();
      break;
  }
}

HintStatuses HintDispatcher::send(const HintPlan& plan, int device, DeviceStream producer,
                                  DeviceStream consumer) {
  const HintStatuses statuses = machine_.sender.send(plan, device, producer, consumer);
  const bool all_sent = std::all_of(statuses.begin(), statuses.end(),
                                    [](const RuntimeStatus& status) { return status.ok(); });
  if (!all_sent) {
    const HeapGuard heap(state_);
    for (std::size_t index = 0; index < plan.size(); ++index) {
      if (!statuses[index].ok()) forget(heap, plan[index]);
    }
  }
  if (machine_.trace.enabled()) trace(plan, statuses, device);
  return statuses;
}

void HintDispatcher::trace(const HintPlan& plan, const HintStatuses& statuses, int device) {
  TraceRecorder& trace = machine_.trace;
  for (std::size_t index = 0; index < plan.size(); ++index) {
    const Hint& hint = plan[index];
    if (!statuses[index].ok()) {
      trace.call_failed(trace.now(), device, hint.address, hint.size_bytes, statuses[index]);
    } else if (hint.kind == HintKind::kAdvise) {
      trace.advised(trace.now(), device, hint.address, hint.size_bytes, hint.advice, hint.place);
    } else {
      trace.prefetched(trace.now(), device, hint.address, hint.size_bytes, hint.place,
                       machine_.sender.lane(device));
    }
  }
}

void HintDispatcher::prepare_pending(const LockedHeap& heap, std::size_t plans) {
  heap.proves(state_);
  const std::size_t wanted = pending_.size() + plans;
  if (pending_.capacity() < wanted) pending_.reserve(2 * wanted);
}

void HintDispatcher::add_pending(const LockedHeap& heap, const HintPlan& plan, int device,
                                 const DeviceStream& user) {
  heap.proves(state_);
  if (!plan.empty()) pending_.push_back({plan, device, user});
}

void HintDispatcher::forget_pending() {
  finish_pending();
  const HeapGuard heap(state_);
  pending_.clear();
}

void HintDispatcher::send_pending(const DeviceStream& user) {
  {
    const HeapGuard heap(state_);
    if (pending_.empty() || state_.is_capturing()) return;
  }
  const RankedGuard one_at_a_time(sending_);
  std::vector<Pending> pending;
  {
    const HeapGuard heap(state_);
    if (state_.is_capturing()) return;
    pending.swap(pending_);
  }
  for (const Pending& hints : pending) {
    send(hints.plan, hints.device, {}, hints.user == user ? user : DeviceStream{});
  }
}

}  // namespace uvm
