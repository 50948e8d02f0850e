// Finds programs that spend most of their time moving memory. A step thrashes if its moves take
// more than half of its time. The time of the moves is estimated from their bytes, because the
// runtime's events have no times.
//
// Time is an argument. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace uvm::live {

class ThrashDetector {
 public:
  using Time = std::chrono::nanoseconds;
  // One direction of a PCIe 3 link with 16 lanes. On a faster link the estimate is too high.
  static constexpr double kBytesPerNanosecond = 12.0;
  static constexpr double kShare = 0.5;
  // In a row, so that one step that compiles or loads says nothing.
  static constexpr int kSteps = 3;

  // While no step is known, so many kernels are taken for one.
  static constexpr std::uint64_t kKernelsWithoutStep = 1024;

  // A kernel of a step with so many kernels (0: no step is known). `moved_bytes` is a total.
  void kernel_added(std::uint64_t step_kernels, std::uint64_t moved_bytes, Time now);

  struct Alarm {
    std::uint64_t moved_bytes = 0;  // in a step
    double share = 0;               // of its time
  };
  // The alarm since the last call. A program raises one at most.
  std::optional<Alarm> take_alarm();

 private:
  std::uint64_t kernels_ = 0;  // of the step so far
  std::uint64_t moved_before_ = 0;
  Time began_{};
  bool has_begun_ = false;
  int steps_in_a_row_ = 0;
  bool has_alarmed_ = false;
  std::optional<Alarm> alarm_;
};

}  // namespace uvm::live
