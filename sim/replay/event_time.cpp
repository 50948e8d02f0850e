#include "sim/replay/event_time.hpp"

namespace uvmsim::replay {

std::uint64_t event_ns(const Recording& recording, const Event& event, const CostModel& costs) {
  if (event.kind == EventKind::kCopy) {
    if (event.way == CopyWay::kInside) return costs.local_copy_ns(event.amount);
    return costs.link_copy_ns(event.amount, event.way == CopyWay::kToHost);
  }
  if (event.kind != EventKind::kKernel) return 0;
  if (event.is_timed) return event.amount;
  std::uint64_t bytes = event.other_bytes;
  for (std::uint32_t i = 0; i < event.touch_count; ++i) {
    const Touch& touch = recording.touches.at(event.first_touch + i);
    bytes += moved_bytes(touch.size_bytes, touch.access);
  }
  return costs.kernel_ns(bytes, event.amount, event.type);
}

}  // namespace uvmsim::replay
