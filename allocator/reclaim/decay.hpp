// Computes how much idle memory should be returned to the driver: half of it in each half-life.
// Memory is idle if it stayed free for a whole period, an eighth of the half-life. So memory that a
// program reuses within a period is kept. Due bytes are carried over, because memory is returned in
// large pieces. Callers pass the time. Not thread-safe: its owner guards it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "allocator/policy/allocation_policy.hpp"

namespace uvm {

class Decay {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::duration<double>;

  // With a half-life of zero nothing ever decays.
  explicit Decay(Duration half_life) : half_life_(half_life) {}

  bool enabled() const { return half_life_.count() > 0; }

  // Returns whether a period has passed, so that due() may return more than 0.
  bool is_period_over(Time now) const {
    return started_ && now - since_ >= half_life_ / policy::kDecayPeriods;
  }

  // Returns how many bytes are due, earlier due bytes included. `free_bytes` is the number of bytes
  // that are free now and could go back. Returns 0 on the first call and within a period.
  std::size_t due(Time now, std::size_t free_bytes) {
    if (!enabled()) return 0;
    if (!started_) {
      started_ = true;
      since_ = now;
      least_bytes_ = free_bytes;
      return 0;
    }
    least_bytes_ = std::min(least_bytes_, free_bytes);
    const Duration passed = now - since_;
    if (!is_period_over(now)) return 0;
    const double kept = std::exp2(-passed / half_life_);
    const auto idle_bytes = static_cast<double>(least_bytes_);
    due_bytes_ = std::min(due_bytes_, idle_bytes);
    due_bytes_ += (idle_bytes - due_bytes_) * (1 - kept);
    since_ = now;
    least_bytes_ = free_bytes;
    return due_bytes_ > 0 ? static_cast<std::size_t>(due_bytes_) : 0;
  }

  // Call this after `bytes` bytes were returned, which may be a few more than were due.
  void gave_back(std::size_t bytes) {
    due_bytes_ -= static_cast<double>(bytes);
    least_bytes_ -= std::min(least_bytes_, bytes);
  }

 private:
  const Duration half_life_;
  bool started_ = false;
  Time since_;                   // start of the current period
  std::size_t least_bytes_ = 0;  // the least number of free bytes in the current period
  double due_bytes_ = 0;         // due, not yet returned; negative if more was returned
};

}  // namespace uvm
