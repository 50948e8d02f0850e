// Plans placement while a program uses more memory than the device has
// (docs/internals/oversubscription.md, "A running program"). There is no plan until a prefetch to a
// device does not fit in its soft budget; until then, the allocator's hot paths only read one
// variable. After that the planner gets all allocations, frees and uses, and moves pages ahead of
// the kernels that use them. The plan of a device ends when no page has moved for a long time and
// the program's memory fits on the device again.
//
// Thread-safe. One thread at a time plans and sends, under the sending lock, so that moves are sent
// in the order of the decisions. The plan lock guards the decisions and is not held across driver
// calls. A free waits for neither of them: it leaves its address for the next decision. Moves never
// change contents: a missing or wrong move does not change what a program computes.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <uvmalloc/use_range.hpp>
#include "allocator/placement/device_plan.hpp"
#include "allocator/placement/spill_limit.hpp"
#include "allocator/placement/waiting_frees.hpp"
#include "allocator/state/heap_state.hpp"
#include "hints/sharing/device_sharing.hpp"

namespace uvm {

namespace live {
class LivePolicy;
}  // namespace live

class LivePlanner {
 public:
  // Called with true when the planner or the groups start to need note_uses(), and with false when
  // neither needs it any more or another listener replaces this one. Called under the sending lock
  // and no other lock. A listener must not call the allocator.
  using Listener = std::function<void(bool wants_uses)>;

  LivePlanner(Machine& machine, HeapState& state, const sharing::DeviceSharing& device_sharing,
              SpillLimit& spill_limit);
  ~LivePlanner();
  LivePlanner(const LivePlanner&) = delete;
  LivePlanner& operator=(const LivePlanner&) = delete;

  bool is_watching() const noexcept { return watches_.load(std::memory_order_relaxed); }
  // Returns whether the planner or the groups need note_uses().
  bool wants_uses() const noexcept { return wants_uses_.load(std::memory_order_relaxed); }
  void set_listener(Listener listener);
  void set_wanted_by_groups(bool wanted) noexcept;

  // Starts to plan for these devices, which are short of memory.
  void begin(const std::vector<int>& devices) noexcept;

  // The functions below do nothing unless is_watching().

  // Ends the plans of all devices, and destroys the plans' streams and events.
  void end() noexcept;
  void allocated(const void* address, Facade facade, int device, std::size_t size_bytes,
                 StreamHandle stream) noexcept;
  void freed(const void* address) noexcept;
  // Called before a kernel or graph of kernels that uses these ranges is launched on the stream.
  void note_uses(int device, StreamHandle stream, std::span<const live::UseRange> uses,
                 live::Launch launch = live::Launch::kKernel) noexcept;
  // Evicts the program's pages from the device. Waits until the stream's work and the moves are
  // finished.
  void leave_device(int device, StreamHandle stream) noexcept;
  void step_boundary() noexcept;
  // Returns whether moves are planned for the device.
  bool plans_for(int device) const noexcept;
  // Moves pages from the devices to the host, or to a device as far as its plan has room. Later
  // work of `stream` waits for pages on the way to the device. Returns the number of these pages.
  std::size_t move_pages(std::span<const PageSpan> pages, Place destination,
                         const DeviceStream& stream) noexcept;
  // Evicts pages of free memory, and returns how many pages may then move to the device of `stream`
  // by its plan. Returns nullopt if no moves of the device are planned.
  std::optional<std::size_t> make_free_room(const DeviceStream& stream) noexcept;
  // Throws OutOfMemoryError once if the program thrashes on the device and the settings make it
  // fail. May throw again after the program has continued and thrashed again.
  void check_thrashing(int device, std::size_t requested_bytes);

  // Replaces the places of pages that a plan has moved. The pages are adjacent.
  void correct_places(const void* first_page, std::vector<Place>* places) const noexcept;

  // Returns the figures of all plans; in a forked child, the parent's figures at the fork.
  live::LiveFigures figures() const UVM_NOT_ANALYSED;

  // Drops all plans without a call to the driver. Called at the end of a forked child.
  void abandon() noexcept;

 private:
  DevicePlan* plan_of(int device) UVM_NOT_ANALYSED;
  void end_plan(std::unique_ptr<DevicePlan>& plan) noexcept UVM_NOT_ANALYSED;
  void end_all() noexcept UVM_NOT_ANALYSED;
  void look_at_peers() UVM_NOT_ANALYSED;
  void tell_listener() noexcept UVM_NOT_ANALYSED;
  void react_to(int device, const live::ThrashDetector::Verdict& verdict) noexcept;
  void note_frees() UVM_NOT_ANALYSED;
  template <class Act>
  void act(Act act) noexcept;

  Machine& machine_;
  HeapState& state_;
  const sharing::DeviceSharing& sharing_;
  SpillLimit& spill_limit_;
  const std::unique_ptr<live::LivePolicy> policy_;  // nullptr: the policy plans no moves
  std::atomic<bool> watches_{false};
  std::atomic<bool> wants_uses_{false};   // the last value passed to the listener
  std::atomic<bool> free_failed_{false};  // a free could not be noted: planning has to stop
  std::vector<std::atomic<bool>> fails_;  // by device: the next allocation for that device throws
  Ranked<std::mutex, LockRank::kSending> sending_;
  mutable PlanLock plan_lock_;
  WaitingFrees frees_;
  std::vector<std::uintptr_t> noted_frees_ UVM_GUARDED_BY(plan_lock_);
  Listener listener_ UVM_GUARDED_BY(sending_);
  bool is_wanted_by_groups_ UVM_GUARDED_BY(sending_) = false;
  // By device. Changed with both locks held.
  std::vector<std::unique_ptr<DevicePlan>> plans_;
  live::LiveFigures ended_ UVM_GUARDED_BY(plan_lock_);  // of ended plans
};

}  // namespace uvm
