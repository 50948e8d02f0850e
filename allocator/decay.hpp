// How much idle memory should go back: half of it in every half-life. Idle is what stayed free
// during a whole period, an eighth of the half-life, so that memory that a program takes and gives
// back in steps shorter than that is left alone. Time is an argument. Guarded by whoever owns it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

namespace uvm {

class Decay {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::duration<double>;

  // A half-life of zero: nothing ever decays.
  explicit Decay(Duration half_life) : half_life_(half_life) {}

  bool enabled() const { return half_life_.count() > 0; }

  // Whether what due() is told now may be found due: a period has passed.
  bool is_period_over(Time now) const { return started_ && now - since_ >= half_life_ / kPeriods; }

  // Tells what is free now; returns how much of it is due. A first call, and one within a period,
  // returns 0.
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
    auto due = static_cast<std::size_t>(static_cast<double>(least_bytes_) * (1 - kept));
    since_ = now;
    least_bytes_ = free_bytes - due;
    return due;
  }

 private:
  static constexpr int kPeriods = 8;

  const Duration half_life_;
  bool started_ = false;
  Time since_;                   // when the present period began
  std::size_t least_bytes_ = 0;  // free at any time of it
};

}  // namespace uvm
