#include "sim/engine/cost_model.hpp"

#include <algorithm>
#include <cmath>

namespace uvmsim {
namespace {

double time_of(std::uint64_t amount, double per_ns) {
  return per_ns == 0 ? 0 : static_cast<double>(amount) / per_ns;
}

std::uint64_t rounded(double ns) {
  return static_cast<std::uint64_t>(std::ceil(ns));
}

double times(std::uint64_t count, double ns) {
  return static_cast<double>(count) * ns;
}

std::uint64_t priced(std::uint64_t count, double ns) {
  return static_cast<std::uint64_t>(times(count, ns));
}

}  // namespace

Phases CostModel::phases(const PlacementWork& work, std::uint64_t kernel_ns) const {
  const Costs& c = costs_;
  Phases phases;
  phases.service_ns =
      work.throttles * throttle_ns_ + rounded(times(work.batches(batch_faults_), c.fault_batch_ns) +
                                              times(work.serviced_blocks, c.fault_block_ns));
  phases.driver_ns = rounded(times(work.moved_blocks, c.prefetch_block_ns) +
                             times(work.populated_blocks, c.populate_block_ns) +
                             times(work.copied_chunks, c.evict_block_ns) +
                             times(work.reclaimed_chunks, c.reclaim_block_ns) +
                             time_of(work.zeroed_bytes, c.zero_bytes_per_ns) +
                             time_of(work.host_zeroed_bytes, c.host_zero_bytes_per_ns));
  phases.to_host_ns =
      rounded(time_of(work.evicted_bytes + work.to_host_bytes, c.to_host_bytes_per_ns));
  phases.to_device_ns = rounded(time_of(work.to_device_bytes, c.to_device_bytes_per_ns));
  phases.between_devices_ns =
      rounded(time_of(work.between_devices_bytes, c.between_devices_bytes_per_ns));
  phases.between_devices_to = work.between_devices_to;
  phases.kernel_ns =
      std::max(kernel_ns, rounded(time_of(work.remote_bytes, c.remote_bytes_per_ns)));
  return phases;
}

Phases CostModel::copy_phases(const PlacementWork& work, std::uint64_t bytes, CopyWay way) const {
  Phases phases = this->phases(work);
  if (way == CopyWay::kInside) {
    phases.kernel_ns += local_copy_ns(bytes);
  } else if (way == CopyWay::kToHost) {
    phases.to_host_ns += link_copy_ns(bytes, true);
  } else if (way == CopyWay::kBetweenDevices) {
    phases.between_devices_ns += rounded(time_of(bytes, costs_.between_devices_bytes_per_ns));
  } else {
    phases.to_device_ns += link_copy_ns(bytes, false);
  }
  return phases;
}

std::uint64_t CostModel::advice_ns(std::uint64_t blocks) const {
  return priced(1, costs_.advice_ns) + priced(blocks, costs_.advice_block_ns);
}

Phases CostModel::discard_phases(std::uint64_t blocks) const {
  return {.driver_ns = priced(blocks, costs_.discard_block_ns)};
}

std::uint64_t CostModel::local_copy_ns(std::uint64_t bytes) const {
  return rounded(time_of(bytes, costs_.copy_bytes_per_ns));
}

std::uint64_t CostModel::link_copy_ns(std::uint64_t bytes, bool to_host) const {
  return rounded(
      time_of(bytes, to_host ? costs_.to_host_bytes_per_ns : costs_.to_device_bytes_per_ns));
}

std::uint64_t CostModel::kernel_ns(std::uint64_t bytes, std::uint64_t operations,
                                   OperationType type) const {
  const auto peak_of = [this](OperationType of) {
    return costs_.operations_per_ns[static_cast<std::size_t>(of)];
  };
  double peak = peak_of(type);
  // A device without tensor cores for this type computes such operations as float32.
  if (peak == 0 && type == OperationType::kTensorFloat32) peak = peak_of(OperationType::kFloat32);
  return rounded(costs_.launch_ns +
                 std::max(time_of(bytes, costs_.kernel_bytes_per_ns), time_of(operations, peak)));
}

}  // namespace uvmsim
