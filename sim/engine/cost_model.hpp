// What things cost in virtual time, from the figures of a machine's profile. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/placement_work.hpp"

namespace uvmsim {

// Types of a kernel's operations, each with a peak of its own.
enum class OperationType { kFloat64, kFloat32, kTensorFloat32, kFloat16, kFloat8 };
inline constexpr std::size_t kOperationTypes = 5;

// Rates are in bytes (or operations) per virtual nanosecond, which is GB/s; a rate of 0 costs
// nothing. The defaults are those of the ideal machine, where only copies over the link and kernels
// take time.
struct Costs {
  double kernel_bytes_per_ns = 1000;
  double launch_ns = 2000;
  std::array<double, kOperationTypes> operations_per_ns{};

  double copy_bytes_per_ns = 2000;  // inside a device, each byte counted once
  double to_device_bytes_per_ns = 50;
  double to_host_bytes_per_ns = 50;
  double between_devices_bytes_per_ns = 50;
  double remote_bytes_per_ns = 0;  // that a kernel uses where they are
  double zero_bytes_per_ns = 0;
  double host_zero_bytes_per_ns = 0;

  double call_ns = 0;  // the host's time for a call of the driver that this table does not name
  double query_ns = 1000;
  double prefetch_block_ns =
      0;  // of the driver, for each 2 MiB block of a request, beside the copy
  double populate_block_ns = 0;
  double evict_block_ns = 0;    // beside the copy
  double reclaim_block_ns = 0;  // evicted without a copy
  double fault_batch_ns = 0;
  double fault_block_ns = 0;
  double advice_ns = 0;
  double advice_block_ns = 0;
  double discard_block_ns = 0;
};

// What a kernel does beside touching its ranges: a time that is known, or operations of a type,
// whose time the cost model says. A value.
struct KernelWork {
  KernelWork(std::uint64_t nanoseconds) : duration_ns(nanoseconds) {}  // NOLINT: a time is a work
  KernelWork(std::uint64_t count, OperationType of, bool is_part = false)
      : operations(count), type(of), continues(is_part), is_timed(false) {}

  std::uint64_t duration_ns = 0;
  std::uint64_t operations = 0;
  OperationType type = OperationType::kFloat32;
  bool continues = false;  // a part of a kernel that has been launched
  bool is_timed = true;    // by duration_ns
};

// What a piece of work keeps busy. The parts follow one another: the eviction and the service of
// faults are on the critical path of what waits for them.
struct Phases {
  std::uint64_t service_ns = 0;    // the driver's service of faults
  std::uint64_t driver_ns = 0;     // its other work, by the thread that asks for it
  std::uint64_t to_host_ns = 0;    // the copy engine to the host
  std::uint64_t to_device_ns = 0;  // the copy engine to the device
  // The link by which a device gets bytes of others; -1: it is the device of the work.
  std::uint64_t between_devices_ns = 0;
  int between_devices_to = -1;
  std::uint64_t kernel_ns = 0;
};

// What a kernel moves of a range: what it reads and writes is moved twice. `access` is UVMSIM_READ,
// UVMSIM_WRITE or both.
constexpr std::uint64_t moved_bytes(std::uint64_t size_bytes, int access) {
  return size_bytes * (access == (UVMSIM_READ | UVMSIM_WRITE) ? 2 : 1);
}

// The way of an explicit copy.
enum class CopyWay { kToDevice, kToHost, kInside, kBetweenDevices };

class CostModel {
 public:
  CostModel(const Costs& costs, std::size_t batch_faults, std::uint64_t throttle_ns)
      : costs_(costs), batch_faults_(batch_faults), throttle_ns_(throttle_ns) {}

  const Costs& costs() const { return costs_; }

  // Of what moved, with `kernel_ns` of a kernel after it, or at once with remote accesses.
  Phases phases(const PlacementWork& work, std::uint64_t kernel_ns = 0) const;

  // Of an explicit copy, with what moved for it.
  Phases copy_phases(const PlacementWork& work, std::uint64_t bytes, CopyWay way) const;

  // Of advice for a range that meets so many blocks, during which the host works alone.
  std::uint64_t advice_ns(std::uint64_t blocks) const;
  // Of a discard of so many blocks.
  Phases discard_phases(std::uint64_t blocks) const;

  // Of an explicit copy: inside a device, or over the link.
  std::uint64_t local_copy_ns(std::uint64_t bytes) const;
  std::uint64_t link_copy_ns(std::uint64_t bytes, bool to_host) const;

  // Launch, and the longer of moving the bytes and of the operations. Operations whose type has no
  // peak cost nothing.
  std::uint64_t kernel_ns(std::uint64_t bytes, std::uint64_t operations, OperationType type) const;

  // Of a kernel that moves so many bytes.
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
