#include <uvmalloc/hints/live/thrash_detector.hpp>

#include <algorithm>
#include <utility>

namespace uvm::live {

void ThrashDetector::kernel_added(std::uint64_t step_kernels, std::uint64_t moved_bytes, Time now) {
  if (has_begun_ && ++kernels_ < (step_kernels != 0 ? step_kernels : kKernelsWithoutStep)) return;
  const auto step_ns = static_cast<double>((now - began_).count());
  const std::uint64_t bytes = moved_bytes - moved_before_;
  const double share = static_cast<double>(bytes) / kBytesPerNanosecond / std::max(step_ns, 1.0);
  const bool is_whole_step = std::exchange(has_begun_, true);
  steps_in_a_row_ = is_whole_step && share > kShare ? steps_in_a_row_ + 1 : 0;
  kernels_ = 0;
  moved_before_ = moved_bytes;
  began_ = now;
  if (steps_in_a_row_ < kSteps || std::exchange(has_alarmed_, true)) return;
  alarm_ = Alarm{bytes, std::min(share, 1.0)};
}

std::optional<ThrashDetector::Alarm> ThrashDetector::take_alarm() {
  return std::exchange(alarm_, std::nullopt);
}

}  // namespace uvm::live
