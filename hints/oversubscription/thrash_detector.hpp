// Finds programs whose steps become slow because their memory does not fit the device. The slowdown
// is the time of the step's moves, which is estimated from their bytes. The time of the step is
// measured on the device (StepClock).
//
// The detector judges stretches of kernels. A stretch is a step, if a step is known. Otherwise it
// ends when bytes equal to 1/kThrashDeviceParts of the device's memory have moved, or after
// kKernelsWithoutStep kernels. So thrashing is detected even within a step.
//
// Thrashing begins when one stretch is slower than twice the limit, or kThrashSteps in a row are
// slower than the limit. It ends when kThrashSteps in a row have less than half of the limit's
// slowdown. Slowdowns in between change nothing, so for a program at the limit thrashing does not
// begin repeatedly.
//
// Time is an argument. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace uvm::live {

// Measures the time between marks on the device.
class StepClock {
 public:
  using Time = std::chrono::nanoseconds;
  virtual ~StepClock() = default;
  // Records an event after all work submitted so far.
  virtual void mark() = 0;
  // Returns the time between the last two marks; nullopt if the device has not reached the last
  // mark.
  virtual std::optional<Time> between_marks() = 0;
};

class ThrashDetector {
 public:
  // `most_slowdown` limits the time of a step, relative to its time with enough memory.
  explicit ThrashDetector(double most_slowdown);

  // Call this before each kernel. `step_kernels` is the number of kernels of the step (0: no step
  // is known). `moved_bytes` is the total of the bytes that moved back to the device and that were
  // evicted for them; `device_bytes` is the device's memory.
  void kernel_added(std::uint64_t step_kernels, std::uint64_t moved_bytes,
                    std::uint64_t device_bytes, StepClock& clock);

  struct Verdict {
    bool is_too_slow =
        false;            // thrashing has begun, and the last stretch was slower than the limit
    bool is_new = false;  // thrashing begins with this verdict
    std::uint64_t moved_bytes = 0;  // bytes moved in the stretch
    double slowdown = 1;            // slowdown of the stretch; infinity: all its time is for moves
  };
  // Returns the verdict on the stretch that was judged since the last call, if any.
  std::optional<Verdict> take_verdict();

  // The last step whose time has become known since the last call.
  struct Step {
    std::uint64_t kernels = 0;
    std::uint64_t kernels_since = 0;  // kernels since the end of the step
    StepClock::Time time{};
  };
  std::optional<Step> take_step();

  // Forgets all earlier stretches. Called after the program got an error.
  void begin_again();

 private:
  void try_to_judge(StepClock& clock);
  void judge(std::uint64_t moved_bytes, StepClock::Time time);

  const double most_slowdown_;
  bool has_begun_ = false;
  bool waits_for_time_ = false;    // the stretch has ended, and its time is not known
  std::uint64_t ended_bytes_ = 0;  // bytes moved in the ended stretch
  std::uint64_t ended_step_ = 0;   // kernels of the ended stretch if it was a step, else 0
  std::uint64_t kernels_ = 0;      // kernels of the current stretch
  std::uint64_t moved_before_ = 0;
  int slow_in_a_row_ = 0;
  int calm_in_a_row_ = 0;
  bool is_thrashing_ = false;
  std::optional<Verdict> verdict_;
  std::optional<Step> step_;
};

}  // namespace uvm::live
