#include "hints/oversubscription/thrash_detector.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {

ThrashDetector::ThrashDetector(double most_slowdown)
    : most_slowdown_(std::max(most_slowdown, policy::kLeastSlowdownLimit)) {}

void ThrashDetector::kernel_added(std::uint64_t step_kernels, std::uint64_t moved_bytes,
                                  std::uint64_t device_bytes, StepClock& clock) {
  if (!std::exchange(has_begun_, true)) {
    clock.mark();
    kernels_ = 0;
    moved_before_ = moved_bytes;
    return;
  }
  ++kernels_;
  if (waits_for_time_) {
    try_to_judge(clock);
    return;
  }
  const std::uint64_t moved = moved_bytes - moved_before_;
  const bool has_ended = step_kernels != 0 ? kernels_ >= step_kernels
                                           : moved >= device_bytes / policy::kThrashDeviceParts ||
                                                 kernels_ >= policy::kKernelsWithoutStep;
  if (!has_ended) return;
  clock.mark();
  ended_bytes_ = moved;
  ended_step_ = step_kernels == 0 ? 0 : kernels_;
  kernels_ = 0;
  moved_before_ = moved_bytes;
  waits_for_time_ = true;
  try_to_judge(clock);
}

void ThrashDetector::try_to_judge(StepClock& clock) {
  const std::optional<StepClock::Time> time = clock.between_marks();
  if (!time) return;
  waits_for_time_ = false;
  if (ended_step_ != 0) step_ = Step{ended_step_, kernels_, *time};
  judge(ended_bytes_, *time);
}

void ThrashDetector::judge(std::uint64_t moved_bytes, StepClock::Time time) {
  const double step_ns = std::max(static_cast<double>(time.count()), 1.0);
  const double left_ns = step_ns - static_cast<double>(moved_bytes) / policy::kThrashLinkBytesPerNs;
  const double slowdown = left_ns > 0 ? step_ns / left_ns : std::numeric_limits<double>::infinity();
  const bool is_slow = slowdown > most_slowdown_;
  slow_in_a_row_ = is_slow ? slow_in_a_row_ + 1 : 0;
  calm_in_a_row_ = slowdown < 1 + (most_slowdown_ - 1) / 2 ? calm_in_a_row_ + 1 : 0;
  const bool was_thrashing = is_thrashing_;
  if (slowdown > 2 * most_slowdown_ || slow_in_a_row_ >= policy::kThrashSteps) is_thrashing_ = true;
  if (calm_in_a_row_ >= policy::kThrashSteps) is_thrashing_ = false;
  verdict_ =
      Verdict{is_slow && is_thrashing_, is_thrashing_ && !was_thrashing, moved_bytes, slowdown};
}

std::optional<ThrashDetector::Verdict> ThrashDetector::take_verdict() {
  return std::exchange(verdict_, std::nullopt);
}

std::optional<ThrashDetector::Step> ThrashDetector::take_step() {
  return std::exchange(step_, std::nullopt);
}

void ThrashDetector::begin_again() {
  has_begun_ = waits_for_time_ = is_thrashing_ = false;
  slow_in_a_row_ = calm_in_a_row_ = 0;
  verdict_.reset();
}

}  // namespace uvm::live
