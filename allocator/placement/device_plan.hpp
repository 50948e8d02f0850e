// The live plan of one device, with the parts that the plan needs: its log, its learner, the lanes
// that send its moves. Decides under the plan lock, and calls the driver without that lock.
//
// Called with LivePlanner's sending lock held, so that moves are sent in the order of the
// decisions, except the functions that say otherwise.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include <uvmalloc/use_range.hpp>
#include "allocator/placement/peer_room.hpp"
#include "allocator/placement/residency_check.hpp"
#include "allocator/state/heap_state.hpp"
#include "hints/oversubscription/device_clock.hpp"
#include "hints/oversubscription/live_plan.hpp"
#include "hints/oversubscription/move_lanes.hpp"
#include "hints/oversubscription/move_list.hpp"
#include "hints/oversubscription/thrash_detector.hpp"

namespace uvm {

// Guards the decisions of all devices' plans. Held only for a short time: never across a driver
// call, and never while a thread waits for a device.
using PlanLock = Ranked<std::mutex, LockRank::kPlan>;

class DevicePlan final : private live::PageOwner {
 public:
  // Returns whether a device has a plan of its own.
  using HasPlan = std::function<bool(int device)>;

  DevicePlan(Machine& machine, HeapState& state, const live::LivePolicy& policy, PlanLock& lock,
             HasPlan has_plan, double most_slowdown, int device);
  ~DevicePlan() override;
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  void allocated(const live::BlockExtent& block, bool is_used_here, const DeviceStream& stream);
  // With the plan lock held; needs no other lock. After the frees before it, and before a block is
  // allocated there.
  void freed(std::uintptr_t address);
  void note_uses(const DeviceStream& stream, std::span<const live::UseRange> uses,
                 live::Launch launch);
  void step_boundary();
  // Updates the room that the peers have for pages of this plan. Pages that no longer fit on a peer
  // move to the host, because the peer's own pages have priority.
  void look_at_peers();
  void leave_peers();
  // Evicts all pages. Waits until the stream's work and the moves are finished.
  void leave_device(const DeviceStream& stream);
  // leave_pages() evicts pages that the program wants on another place. bring_pages() prefetches
  // pages while there is room, and returns the number of these pages.
  void leave_pages(std::span<const PageSpan> pages, const DeviceStream& stream);
  std::size_t bring_pages(std::span<const PageSpan> pages, const DeviceStream& stream);
  std::size_t make_free_room(const DeviceStream& stream);

  // Returns whether no page has moved for a long time and all device memory of the program, used or
  // cached, fits again. It must fit, because uses of pages on the host are not reported after the
  // plan has ended.
  bool is_over();
  int device() const { return device_; }
  live::ThrashDetector& thrashing() { return thrashing_; }
  // With either lock held.
  const live::LiveFigures& figures() const { return plan_.figures(); }
  // With the plan lock held; needs no other lock.
  void correct_places(PageNumber first, std::vector<Place>* places) const;
  // In a forked child. Calls no driver, and needs no lock.
  void abandon() noexcept;

 private:
  // ---- PageOwner, with the plan lock held
  bool is_ours(PageNumber page) const override { return state_.is_ours(start_of_page(page)); }
  // Takes the page out of its pool until the discard is sent, so that no request gets it.
  live::Discarded take_free(PageNumber page, DeviceStream* user) override;

  template <class Act>
  void decide(const DeviceStream& stream, Act act);
  void send_moves();
  std::size_t chunks() const;
  live::BlockExtent block_at(std::uintptr_t address) const;
  bool is_in_span_of_next(PageNumber page) const;
  ResidencyCheck::Result compare(PageNumber first, const std::vector<bool>& are_here);
  void put_back_free_pages() noexcept;
  void look_around();
  void measure_peers();
  void judge_step();

  HeapState& state_;
  PlanLock& lock_;
  const HasPlan has_plan_;
  const int device_;
  // Changed with both locks held, or by freed(). So the sending lock suffices to read what freed()
  // does not change.
  live::UseLog log_;
  live::StepLearner learner_;
  // Used with the sending lock held, because a free decides on no move.
  live::MoveList moves_;                    // moves that are not sent yet
  std::vector<live::PlannedMove> sending_;  // moves that are being sent, or were sent last
  std::vector<PageBlock*> free_pages_;      // pages whose discards are among the moves in sending_
  live::LivePlan plan_;                     // guarded like log_ and learner_
  live::MoveLanes lanes_;
  ResidencyCheck residency_;
  PeerRoom peers_;
  live::DeviceClock clock_;
  live::ThrashDetector thrashing_;
  std::uint64_t moved_pages_ = 0;
  std::uint64_t calm_kernels_ = 0;
};

}  // namespace uvm
