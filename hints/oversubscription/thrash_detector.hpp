// Finds programs whose steps become slow because their memory does not fit the device. A step is
// slower by the time of its moves, which is estimated from their bytes. The time of the step is the
// device's (StepClock).
//
// A stretch that is judged is a step, if one is known. Otherwise it ends when as many bytes have
// moved as 1/kThrashDeviceParts of the device has, or after kKernelsWithoutStep kernels. So
// thrashing is seen within a step.
//
// Thrashing begins when one stretch is slower than twice the limit, or kThrashSteps in a row are
// slower than the limit. It ends when kThrashSteps in a row have less than half of the limit's
// slowdown. What lies between changes nothing, so a program at the limit does not begin again and
// again.
//
// Time is an argument. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace uvm::live {

// The time between marks on the device.
class StepClock {
 public:
  using Time = std::chrono::nanoseconds;
  virtual ~StepClock() = default;
  // A mark after the work so far.
  virtual void mark() = 0;
  // The time between the last two marks; nullopt: the device has not come to the last one.
  virtual std::optional<Time> between_marks() = 0;
};

class ThrashDetector {
 public:
  // A step may take so many times as long as with memory enough.
  explicit ThrashDetector(double most_slowdown);

  // Before a kernel of a step with so many kernels (0: no step is known). `moved_bytes` is a total
  // of bytes that came back and had to leave before; `device_bytes` is what the device has.
  void kernel_added(std::uint64_t step_kernels, std::uint64_t moved_bytes,
                    std::uint64_t device_bytes, StepClock& clock);

  struct Verdict {
    bool is_too_slow =
        false;            // thrashing has begun, and the last stretch was slower than the limit
    bool is_new = false;  // it begins with this verdict
    std::uint64_t moved_bytes = 0;  // in the stretch
    double slowdown = 1;            // of the stretch; infinity: there is only time for moves
  };
  // Of the stretch that was judged since the last call.
  std::optional<Verdict> take_verdict();

  // The last step whose time has become known since the last call; nullopt also if no step is
  // known.
  struct Step {
    std::uint64_t kernels = 0;
    std::uint64_t kernels_since = 0;  // its end
    StepClock::Time time{};
  };
  std::optional<Step> take_step();

  // What comes is judged without what was. After the program got an error.
  void begin_again();

 private:
  void try_to_judge(StepClock& clock);
  void judge(std::uint64_t moved_bytes, StepClock::Time time);

  const double most_slowdown_;
  bool has_begun_ = false;
  bool waits_for_time_ = false;    // the stretch has ended, and its time is not known
  std::uint64_t ended_bytes_ = 0;  // of that stretch
  std::uint64_t ended_step_ = 0;   // its kernels if it is a step, or 0
  std::uint64_t kernels_ = 0;      // of the present stretch
  std::uint64_t moved_before_ = 0;
  int slow_in_a_row_ = 0;
  int calm_in_a_row_ = 0;
  bool is_thrashing_ = false;
  std::optional<Verdict> verdict_;
  std::optional<Step> step_;
};

}  // namespace uvm::live
