// When the moves of a schedule are sent, and in which order. A schedule says which blocks leave and
// arrive; this says how early. A block leaves as soon as its last use is over and the way to the
// host is free, long before its chunk is needed. A block arrives as soon as a chunk is free, in the
// order of needs. So copies of both ways run beside kernels. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tools/oversubscription/move_schedule.hpp"
#include "tools/oversubscription/use_order.hpp"

namespace uvm::plan {

// How long moves take. Copies of one way follow one another; the driver's own work for one move
// runs beside the copy of another.
struct MoveCosts {
  double to_device_bytes_per_ns = 0;  // 0: a copy takes no time
  double to_host_bytes_per_ns = 0;
  std::uint64_t arrival_ns = 0;  // the driver's own work for a block that arrives
  std::uint64_t leaving_ns = 0;  // and for one that leaves
};

// One half of a move: its victim leaves, or its block arrives.
struct TimedCall {
  std::uint32_t move = 0;  // in MoveSchedule::moves
  bool is_arrival = false;
  std::size_t before = 0;  // the kernel before which it is sent; after the uses of a leaving block

  bool operator==(const TimedCall&) const = default;
};

inline constexpr std::uint32_t kFreeChunk = std::numeric_limits<std::uint32_t>::max();

struct MoveTiming {
  std::vector<TimedCall> calls;  // in the order in which they are sent
  // By move: the move whose victim gives the chunk to the arriving block, or kFreeChunk. That
  // victim leaves earlier in `calls`.
  std::vector<std::uint32_t> chunk_from;
  std::uint64_t predicted_ns = 0;  // from the start of the first kernel to the end of the last one
};

// Each move at its need, with the chunk of its own victim.
MoveTiming on_demand(const MoveSchedule& schedule);

// As early as chunks and lanes allow, by the lengths of the kernels in `order`.
MoveTiming ahead_of_need(const UseOrder& order, const MoveSchedule& schedule,
                         const MoveCosts& costs);

struct TimedSchedule {
  MoveSchedule schedule;
  MoveTiming timing;
};

// The plan of one of the rules of choice. Of those that are predicted to end within 10 % of the
// first to end, it is the one that moves the fewest bytes. `choices` is not empty.
TimedSchedule fastest(const UseOrder& order, const ScheduleOptions& options, const MoveCosts& costs,
                      std::span<const VictimChoice* const> choices);

}  // namespace uvm::plan
