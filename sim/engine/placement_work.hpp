// Counts the work that a machine has for moving pages. The cost model turns these counts into time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace uvmsim {

struct PlacementWork {
  // Bytes copied because of faults and requests, without evictions.
  std::uint64_t to_device_bytes = 0;
  std::uint64_t to_host_bytes = 0;
  std::uint64_t between_devices_bytes = 0;
  int between_devices_to = -1;     // the receiving device; -1: none
  std::uint64_t moved_blocks = 0;  // blocks with pages that a request made resident

  std::uint64_t evicted_bytes = 0;
  std::uint64_t copied_chunks = 0;     // chunks evicted with a copy
  std::uint64_t reclaimed_chunks = 0;  // chunks evicted without a copy

  std::uint64_t populated_blocks = 0;  // chunks that a device got
  std::uint64_t zeroed_bytes = 0;      // bytes zeroed on a device
  std::uint64_t host_zeroed_bytes = 0;

  std::uint64_t remote_bytes = 0;     // bytes that a device used in place
  std::uint64_t serviced_blocks = 0;  // times that a block's faults were serviced
  std::uint64_t throttles = 0;        // sleeps of processors because of thrashing
  // Faults of a kernel by turn: turn n counts the faults in the n-th service of each block. Faults
  // of one turn share batches.
  std::array<std::uint32_t, 32> faults_by_turn{};
  std::size_t turns = 0;

  bool operator==(const PlacementWork&) const = default;

  std::uint64_t copied_bytes() const {
    return to_device_bytes + to_host_bytes + between_devices_bytes;
  }

  void count_faults(std::size_t turn, std::size_t faults) {
    turn = std::min(turn, faults_by_turn.size() - 1);
    turns = std::max(turns, turn + 1);
    faults_by_turn[turn] += static_cast<std::uint32_t>(faults);
    ++serviced_blocks;
  }

  std::uint64_t batches(std::size_t batch_faults) const {
    std::uint64_t found = 0;
    for (std::size_t turn = 0; turn < turns; ++turn)
      found += (faults_by_turn[turn] + batch_faults - 1) / batch_faults;
    return found;
  }
};

}  // namespace uvmsim
