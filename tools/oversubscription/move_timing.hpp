// Decides when, and in which order, the moves of a schedule are sent. A block is evicted as soon as
// its last use has ended and the lane to the host is free, long before its chunk is needed. A block
// arrives as soon as a chunk is free; blocks that are needed first arrive first. So copies in both
// directions overlap with kernels. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tools/oversubscription/move_schedule.hpp"
#include "tools/oversubscription/use_order.hpp"

namespace uvm::plan {

// The costs of moves. Copies in one direction run one after another. The driver's work for one move
// overlaps with the copy of another move.
struct MoveCosts {
  double to_device_bytes_per_ns = 0;  // 0: a copy takes no time
  double to_host_bytes_per_ns = 0;
  std::uint64_t arrival_ns = 0;  // the driver's work for an arriving block
  std::uint64_t leaving_ns = 0;  // the driver's work for an evicted block
};

// One half of a move: the eviction of its victim, or the arrival of its block.
struct TimedCall {
  std::uint32_t move = 0;  // index in MoveSchedule::moves
  bool is_arrival = false;
  std::size_t before = 0;  // the kernel before which the call is sent

  bool operator==(const TimedCall&) const = default;
};

inline constexpr std::uint32_t kFreeChunk = std::numeric_limits<std::uint32_t>::max();

struct MoveTiming {
  std::vector<TimedCall> calls;  // in the order in which they are sent
  // By move: the move with the victim that releases the chunk for the arriving block, or
  // kFreeChunk. That victim is evicted earlier in `calls`.
  std::vector<std::uint32_t> chunk_from;
  std::uint64_t predicted_ns = 0;  // from the start of the first kernel to the end of the last
};

// Returns a timing that sends each move when it is needed, with the chunk of its own victim.
MoveTiming on_demand(const MoveSchedule& schedule);

// Sends moves as early as chunks and lanes allow, given the kernel durations in `order`.
MoveTiming ahead_of_need(const UseOrder& order, const MoveSchedule& schedule,
                         const MoveCosts& costs);

struct TimedSchedule {
  MoveSchedule schedule;
  MoveTiming timing;
};

// Returns the schedule of the best of `choices`, which must not be empty: among the schedules with
// a predicted end within 10 % of the earliest, the one that moves the fewest bytes.
TimedSchedule fastest(const UseOrder& order, const ScheduleOptions& options, const MoveCosts& costs,
                      std::span<const VictimChoice* const> choices);

}  // namespace uvm::plan
