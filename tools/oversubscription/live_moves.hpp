// Runs the plan of a running program (hints/oversubscription) in a replay: the policy `auto` on a
// machine of any size. The plan receives allocations, frees and kernels one by one, without
// knowledge of later ones. A recording does not say which kernels touch each byte once, so no
// memory is used in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "hints/event_pool.hpp"
#include "hints/hint_counters.hpp"
#include "hints/oversubscription/live_plan.hpp"
#include "hints/oversubscription/move_lanes.hpp"
#include "sim/replay/hint_policy.hpp"

#include "tools/oversubscription/replay_runtime.hpp"

namespace uvm::oversubscription {

class LiveMoves final : public uvmsim::replay::HintPolicy, private live::PageOwner {
 public:
  LiveMoves(const uvmsim::replay::Recording& recording, Policy policy);
  // The replay has ended, so its machine must receive no more calls.
  ~LiveMoves() override { lanes_.abandon(); }

  void before(std::size_t event, uvmsim::replay::Hints& hints) override;

  const live::LiveFigures& figures() const { return plan_->figures(); }

 private:
  struct Allocation {
    std::uintptr_t address = 0;  // address of its first 4 KiB page
    std::size_t size_bytes = 0;
    bool is_live = false;
  };

  void allocate(const uvmsim::replay::Event& event);
  void free(const uvmsim::replay::Event& event);
  void run_kernel(const uvmsim::replay::Event& event, uvmsim::replay::Hints& hints);
  bool is_short(const uvmsim::replay::Event& event, uvmsim::replay::Hints& hints);
  live::BlockExtent block_at(std::uintptr_t address) const;
  bool holds_anything(PageNumber page) const;
  // A recording does not tell that adjacent pages belong to different allocations.
  static bool any_page(PageNumber) { return true; }
  DeviceStream stream() const { return {0, ReplayRuntime::handle_of(last_stream_)}; }

  // ---- PageOwner
  bool is_ours(PageNumber) const override { return true; }
  live::Discarded take_free(PageNumber page, DeviceStream* user) override;
  void send_moves();

  const uvmsim::replay::Recording& recording_;
  const std::unique_ptr<live::LivePolicy> policy_;
  ReplayRuntime runtime_;
  EventPool events_{runtime_, 1};
  HintCounters counters_;
  std::vector<Allocation> allocations_;  // by Event::block
  // Live allocations: the address of the first page and the number. Small allocations may share a
  // page.
  std::set<std::pair<std::uintptr_t, std::uint32_t>> live_;
  std::set<std::size_t> used_blocks_;  // 2 MiB blocks used before memory was short
  std::uint32_t last_stream_ = 0;
  live::UseLog log_;
  live::StepLearner learner_{log_};
  live::MoveList moves_{*this, /*discards=*/true};
  std::vector<live::PlannedMove> sending_;
  live::MoveLanes lanes_{runtime_, events_, counters_, 0, false, &any_page};
  std::unique_ptr<live::LivePlan> plan_;  // null while all memory fits
};

}  // namespace uvm::oversubscription
