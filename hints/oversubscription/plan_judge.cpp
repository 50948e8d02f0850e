#include "hints/oversubscription/plan_judge.hpp"

#include <algorithm>
#include <utility>

namespace uvm::live {
namespace {

bool are_alike(std::uint64_t step, std::uint64_t other) {
  const std::uint64_t slack = std::max(step, other) / policy::kSameStepParts;
  return step + slack >= other && other + slack >= step;
}

}  // namespace

void PlanJudge::kernel_added(std::uint64_t step_kernels, std::uint64_t moved_pages,
                             std::uint64_t moved_by_lru, std::uint64_t chunks) {
  ++kernels_;
  if (is_known_ && (step_kernels == 0 || !are_alike(step_kernels, step_->kernels))) lose_step();
  if (!is_known_ && step_kernels != 0) know_step(step_kernels);
  moved_ = {moved_pages, moved_by_lru};
  if (is_known_ && ++kernels_of_step_ >= step_->kernels) end_step(chunks);
  set_trust();
}

void PlanJudge::begin_step() {
  kernels_of_step_ = 0;
  moved_before_step_ = moved_;
}

// Compares only whole steps, because within a step the plan may move pages at other times than
// `lru`.
void PlanJudge::end_step(std::uint64_t chunks) {
  const Moved moved = moved_in_step();
  begin_step();
  moved_more_ += moved.by_plan;
  moved_more_ -= std::min(moved_more_, moved.by_lru);
  if (trusts_plan_ && moved_more_ > chunks / policy::kMovedMoreParts) pause();
}

void PlanJudge::know_step(std::uint64_t kernels) {
  is_known_ = true;
  known_since_ = kernels_;
  plan_steps_ = 0;
  const auto found = std::ranges::find_if(
      steps_, [kernels](const Step& step) { return are_alike(kernels, step.kernels); });
  if (found != steps_.end()) {
    step_ = &*found;
    return;
  }
  newest_step_ = (newest_step_ + 1) % steps_.size();
  step_ = &steps_[newest_step_];
  *step_ = {kernels, std::nullopt};
}

void PlanJudge::lose_step() {
  is_known_ = false;
  const bool is_soon = kernels_ - known_since_ < policy::kStepsProven * step_->kernels;
  const Moved moved = moved_in_step();
  const bool has_moved_more = moved_more_ + moved.by_plan > moved.by_lru;
  if (!is_soon || (trusts_plan_ && !has_moved_more)) {
    lost_soon_ = 0;
  } else if (trusts_plan_ && lost_soon_ < policy::kMostLostSoon) {
    ++lost_soon_;
  }
}

// Returns whether the plan is not followed yet. First the program runs one step by `lru`, which is
// timed. If the plan has moved more pages than `lru` for steps that were lost soon, a new step must
// be seen for longer. But the first of those lost steps may have been a part of this step.
bool PlanJudge::waits() const {
  if (!is_known_) return false;
  const bool is_proven = lost_soon_ < 2;
  if (is_proven && step_->lru_time) return false;
  const std::uint64_t steps = is_proven ? policy::kStepsToTime : std::uint64_t{1} << lost_soon_;
  return kernels_ < known_since_ + steps * step_->kernels;
}

void PlanJudge::set_trust() {
  if (std::exchange(trusts_plan_, kernels_ >= paused_until_ && !waits()) == trusts_plan_) return;
  changed_before_ = changed_;
  changed_ = kernels_;
  begin_step();
  moved_more_ = 0;
  plan_steps_ = 0;
}

void PlanJudge::step_took(const ThrashDetector::Step& step) {
  if (!are_alike(step.kernels, step_->kernels)) return;
  const std::uint64_t ended = kernels_ - std::min(kernels_, step.kernels_since);
  const std::uint64_t began = ended - std::min(ended, step.kernels);
  // In the first step of a plan, pages move to where the plan needs them, so this step does not
  // count. The time of a step may become known only after the decision has changed.
  const bool is_of_now = began >= changed_ + (trusts_plan_ ? step.kernels : 0);
  const bool is_lrus_before = trusts_plan_ && ended <= changed_ && began >= changed_before_;
  if (is_lrus_before || (is_of_now && !trusts_plan_)) {
    step_->lru_time = step.time;
  } else if (is_of_now && step_->lru_time) {
    const auto time = static_cast<double>(step.time.count());
    plan_ns_ = plan_steps_ == 0 ? time : (plan_ns_ + time) / 2;
    ++plan_steps_;
    const double most = plan_steps_ == 1 ? policy::kMostOverLruAtFirst : policy::kMostOverLru;
    if (plan_ns_ > most * static_cast<double>(step_->lru_time->count())) pause();
  }
  set_trust();
}

void PlanJudge::pause() {
  const bool is_soon = kernels_ - changed_ < policy::kPausesTrusted * pause_kernels_;
  const std::uint64_t first =
      std::max(policy::kLeastPauseKernels, policy::kStepsOfPause * step_->kernels);
  pause_kernels_ = is_soon ? std::min(2 * pause_kernels_, policy::kMostPauseKernels) : first;
  paused_until_ = kernels_ + pause_kernels_;
}

}  // namespace uvm::live
