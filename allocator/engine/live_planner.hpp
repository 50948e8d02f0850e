// Plans placement while a program runs with less device memory than it uses
// (docs/oversubscription.md, "A running program"). Until a prefetch to a device finds no credit,
// there is no plan, and the allocator's hot paths read one variable. From then on it hears of
// allocations, frees and uses, and moves pages ahead of the kernels that use them. The plan of a
// device ends when nothing has moved for long and its memory fits again.
//
// Thread-safe. One thread at a time plans and sends, so that the order of decisions is that of the
// calls. Moves never change contents: a program that gets no move, or a wrong one, computes the
// same.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <uvmalloc/use_range.hpp>
#include "allocator/engine/heap_state.hpp"
#include "allocator/engine/spill_limit.hpp"
#include "hints/live/thrash_detector.hpp"
#include "hints/sharing/device_sharing.hpp"

namespace uvm {

namespace live {
class LivePolicy;
struct BlockExtent;
}  // namespace live

class LivePlanner {
 public:
  // Is called with true when the planner begins to need uses, with false when it needs none any
  // more, and when another listener takes its place. Without locks but the planner's own; it must
  // not call the allocator.
  using Listener = std::function<void(bool wants_uses)>;

  LivePlanner(Machine& machine, HeapState& state, const sharing::DeviceSharing& device_sharing,
              SpillLimit& spill_limit);
  ~LivePlanner();
  LivePlanner(const LivePlanner&) = delete;
  LivePlanner& operator=(const LivePlanner&) = delete;

  bool is_watching() const noexcept { return watches_.load(std::memory_order_relaxed); }
  void set_listener(Listener listener);

  // Memory of these devices is short.
  void begin(const std::vector<int>& devices) noexcept;

  // The functions that follow do nothing unless is_watching().
  // Ends the plans of all devices, with their streams and events.
  void end() noexcept;
  void allocated(const void* address, Facade facade, int device, std::size_t size_bytes,
                 StreamHandle stream) noexcept;
  void freed(const void* address) noexcept;
  // Before a kernel, or a graph of kernels, with these ranges is put on the stream.
  void note_uses(int device, StreamHandle stream, std::span<const live::UseRange> uses,
                 live::Launch launch = live::Launch::kKernel) noexcept;
  // Moves the program's pages away and waits until the stream and the moves have ended.
  void leave_device(int device, StreamHandle stream) noexcept;
  void step_boundary() noexcept;
  // Throws OutOfMemoryError if the program is to fail because it thrashes on that device: once, and
  // again when it thrashes after that.
  void check_thrashing(int device, std::size_t requested_bytes);

  // In a forked child: as the parent's were.
  live::LiveFigures figures() const UVM_NOT_ANALYSED;

  // In a forked child, and at the end of one.
  void abandon() noexcept;

 private:
  class DevicePlan;

  DevicePlan* plan_of(int device) UVM_NOT_ANALYSED;
  live::BlockExtent block_at(std::uintptr_t address) const;
  void look_at_peers_with_lock() UVM_NOT_ANALYSED;
  void end_with_lock(std::unique_ptr<DevicePlan>& plan) noexcept UVM_NOT_ANALYSED;
  void end_all_with_lock() noexcept UVM_NOT_ANALYSED;
  void tell_listener_with_lock(bool wants_uses) noexcept UVM_NOT_ANALYSED;
  void react_to(int device, const live::ThrashDetector::Verdict& verdict) noexcept;
  template <class Act>
  void act(Act act) noexcept;

  Machine& machine_;
  HeapState& state_;
  const sharing::DeviceSharing& sharing_;
  SpillLimit& spill_limit_;
  const std::unique_ptr<live::LivePolicy> policy_;  // null: the policy plans nothing
  std::atomic<bool> watches_{false};
  std::vector<std::atomic<bool>> fails_;  // by device: the next allocation there gets an error
  mutable Ranked<std::mutex, LockRank::kPlan> mutex_;  // guards the rest
  Listener listener_ UVM_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<DevicePlan>> plans_ UVM_GUARDED_BY(mutex_);  // by device
  live::LiveFigures ended_ UVM_GUARDED_BY(mutex_);                         // of plans that are over
};

}  // namespace uvm
