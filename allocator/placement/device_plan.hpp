// The live plan of one device, with the parts that the plan needs: its log, its learner, the lanes
// that send its moves. Decides under the plan lock, and calls the driver without that lock.
//
// Called with LivePlanner's sending lock held, so that moves are sent in the order of the
// decisions, but for the functions that say otherwise.
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

// Guards the decisions of all devices' plans. Held for a short time only: never across a call of
// the driver, and never while a thread waits for a device.
using PlanLock = Ranked<std::mutex, LockRank::kPlan>;

class DevicePlan final : private live::PageOwner {
 public:
  // Whether a device has a plan of its own.
  using HasPlan = std::function<bool(int device)>;

  DevicePlan(Machine& machine, HeapState& state, const live::LivePolicy& policy, PlanLock& lock,
             HasPlan has_plan, double most_slowdown, int device);
  ~DevicePlan() override;
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  void allocated(const live::BlockExtent& block, bool is_used_here, const DeviceStream& stream);
  // With the plan lock held; needs no other lock.
  void freed(std::uintptr_t address);
  void note_uses(const DeviceStream& stream, std::span<const live::UseRange> uses,
                 live::Launch launch);
  void step_boundary();
  // The peers' own needs come first: pages that no longer fit on a peer move to the host.
  void look_at_peers();
  void leave_peers();
  // All pages leave. Waits for the stream's work and the moves to end.
  void leave_device(const DeviceStream& stream);
  // Pages that the program wants elsewhere leave; pages that it wants here come while there is
  // room.
  void leave_pages(std::span<const PageSpan> pages, const DeviceStream& stream);
  std::size_t bring_pages(std::span<const PageSpan> pages, const DeviceStream& stream);
  std::size_t make_free_room(const DeviceStream& stream);

  // Returns whether no page has moved for long and all device memory of the program, used or
  // cached, fits again. It must fit, because nobody reports uses of pages on the host after that.
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
  // Changed with both locks held, or by freed(); so the sending lock is enough to read what frees
  // do not change.
  live::UseLog log_;
  live::StepLearner learner_;
  // Used with the sending lock held: a free decides on no move.
  live::MoveList moves_;                    // that are not sent yet
  std::vector<live::PlannedMove> sending_;  // or sent last
  std::vector<PageBlock*> free_pages_;      // whose discards are among these moves
  live::LivePlan plan_;                     // as log_ and learner_
  live::MoveLanes lanes_;
  ResidencyCheck residency_;
  PeerRoom peers_;
  live::DeviceClock clock_;
  live::ThrashDetector thrashing_;
  std::uint64_t moved_pages_ = 0;
  std::uint64_t calm_kernels_ = 0;
};

}  // namespace uvm
