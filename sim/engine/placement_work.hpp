// What moving pages made a machine do, for the cost model to price. Counts only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace uvmsim {

struct PlacementWork {
  // Copied by faults and by requests. Evictions are apart.
  std::uint64_t to_device_bytes = 0;
  std::uint64_t to_host_bytes = 0;
  std::uint64_t between_devices_bytes = 0;
  int between_devices_to = -1;     // the device that they were copied to; -1: none
  std::uint64_t moved_blocks = 0;  // times that pages of a block were made resident by a request

  std::uint64_t evicted_bytes = 0;
  std::uint64_t copied_chunks = 0;     // evicted, with something to copy
  std::uint64_t reclaimed_chunks = 0;  // evicted, with nothing to copy

  std::uint64_t populated_blocks = 0;  // chunks that a device got
  std::uint64_t zeroed_bytes = 0;      // on a device
  std::uint64_t host_zeroed_bytes = 0;

  std::uint64_t remote_bytes = 0;     // used by a device where they are
  std::uint64_t serviced_blocks = 0;  // times that faults of a block were serviced
  std::uint64_t throttles = 0;        // times that a processor slept because pages thrash
  // Faults of a kernel by the turn in which their block had them. Those of one turn share batches.
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
