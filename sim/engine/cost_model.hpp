// Computes the virtual time of work from the figures of a machine's profile. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/placement_work.hpp"

namespace uvmsim {

// Types of a kernel's operations. Each has its own peak rate.
enum class OperationType { kFloat64, kFloat32, kTensorFloat32, kFloat16, kFloat8 };
inline constexpr std::size_t kOperationTypes = 5;

// Rates are in bytes (or operations) per virtual nanosecond, which is GB/s. Work at a rate of 0
// takes no time. The defaults are the figures of the ideal machine, on which only copies over the
// link and kernels take time.
struct Costs {
  double kernel_bytes_per_ns = 1000;
  double launch_ns = 2000;
  std::array<double, kOperationTypes> operations_per_ns{};

  double copy_bytes_per_ns = 2000;  // inside a device, each byte counted once
  double to_device_bytes_per_ns = 50;
  double to_host_bytes_per_ns = 50;
  double between_devices_bytes_per_ns = 50;
  double remote_bytes_per_ns = 0;  // rate of a kernel's accesses over the link
  double zero_bytes_per_ns = 0;
  double host_zero_bytes_per_ns = 0;

  double call_ns = 0;  // host time of a driver call without its own entry in this table
  double query_ns = 1000;
  double prefetch_block_ns = 0;  // driver time for each 2 MiB block of a request, without the copy
  double populate_block_ns = 0;
  double evict_block_ns = 0;    // driver time, without the copy
  double reclaim_block_ns = 0;  // driver time of an eviction without a copy
  double fault_batch_ns = 0;
  double fault_block_ns = 0;
  double advice_ns = 0;
  double advice_block_ns = 0;
  double discard_block_ns = 0;
};

// The computation of a kernel: either a known time, or a number of operations, for which the cost
// model computes the time. A plain value.
struct KernelWork {
  KernelWork(std::uint64_t nanoseconds) : duration_ns(nanoseconds) {}  // NOLINT: a time is work
  KernelWork(std::uint64_t count, OperationType of, bool is_part = false)
      : operations(count), type(of), continues(is_part), is_timed(false) {}

  std::uint64_t duration_ns = 0;
  std::uint64_t operations = 0;
  OperationType type = OperationType::kFloat32;
  bool continues = false;  // a further part of a launched kernel, without launch time
  bool is_timed = true;    // duration_ns is valid
};

// The time for which work occupies each lane. The phases run one after another, because evictions
// and fault service are on the critical path.
struct Phases {
  std::uint64_t service_ns = 0;    // fault service by the driver
  std::uint64_t driver_ns = 0;     // other driver work, on the calling thread
  std::uint64_t to_host_ns = 0;    // the copy engine to the host
  std::uint64_t to_device_ns = 0;  // the copy engine to the device
  // Copies from other devices occupy the link of the receiving device; -1: the device that works.
  std::uint64_t between_devices_ns = 0;
  int between_devices_to = -1;
  std::uint64_t kernel_ns = 0;
};

// Returns the bytes that a kernel moves for a range: twice the size if the kernel reads and writes
// the range. `access` is UVMSIM_READ, UVMSIM_WRITE or both.
constexpr std::uint64_t moved_bytes(std::uint64_t size_bytes, int access) {
  return size_bytes * (access == (UVMSIM_READ | UVMSIM_WRITE) ? 2 : 1);
}

// The direction of an explicit copy.
enum class CopyWay { kToDevice, kToHost, kInside, kBetweenDevices };

class CostModel {
 public:
  CostModel(const Costs& costs, std::size_t batch_faults, std::uint64_t throttle_ns)
      : costs_(costs), batch_faults_(batch_faults), throttle_ns_(throttle_ns) {}

  const Costs& costs() const { return costs_; }

  // Returns the phases of page moves and then of a kernel that takes `kernel_ns`. The kernel's
  // remote accesses overlap with its `kernel_ns`.
  Phases phases(const PlacementWork& work, std::uint64_t kernel_ns = 0) const;

  // Returns the phases of an explicit copy, and of the page moves that the copy caused.
  Phases copy_phases(const PlacementWork& work, std::uint64_t bytes, CopyWay way) const;

  // Returns the time of advice for a range of `blocks` blocks. During this time faults are not
  // serviced.
  std::uint64_t advice_ns(std::uint64_t blocks) const;
  // Returns the phases of a discard of `blocks` blocks.
  Phases discard_phases(std::uint64_t blocks) const;

  // Return the time of an explicit copy inside a device, or over the link.
  std::uint64_t local_copy_ns(std::uint64_t bytes) const;
  std::uint64_t link_copy_ns(std::uint64_t bytes, bool to_host) const;

  // Returns the launch time plus the longer of the times for the bytes and the operations.
  // Operations of a type without a peak rate take no time.
  std::uint64_t kernel_ns(std::uint64_t bytes, std::uint64_t operations, OperationType type) const;

  // Returns the time of a kernel that moves `bytes`.
  std::uint64_t kernel_ns(const KernelWork& work, std::uint64_t bytes) const {
    if (work.is_timed) return work.duration_ns;
    const std::uint64_t whole_ns = kernel_ns(bytes, work.operations, work.type);
    return work.continues ? whole_ns - kernel_ns(0, 0, work.type) : whole_ns;
  }

 private:
  Costs costs_;
  std::size_t batch_faults_;
  std::uint64_t throttle_ns_;
};

}  // namespace uvmsim
