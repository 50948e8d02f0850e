// Which blocks come to a device and which leave it, for a known order of uses. Every arrival is
// tied to the chunk it takes: a free one, or that of the block that leaves for it. So an arrival
// can be sent as soon as the last use of the leaving block is over, long before it is needed.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hints/live/victim_choice.hpp"

#include "tools/oversubscription/use_order.hpp"

namespace uvm::plan {

enum class Leaving : std::uint8_t {
  kNothing,  // a free chunk is taken
  kCopied,
  kDropped,    // its contents are dead
  kUnchanged,  // the host still has the same bytes
};

struct Move {
  std::uint32_t block = 0;
  std::uint64_t arriving_bytes = 0;  // 0: there is nothing to copy
  Leaving leaving = Leaving::kNothing;
  std::uint32_t victim = 0;         // where one leaves
  std::uint64_t leaving_bytes = 0;  // copied to the host
  // The kernel before which it can be sent at the earliest: all uses of the victim are before it.
  std::size_t after = 0;
  std::size_t need = 0;  // the kernel that must wait for it
  // The host keeps its bytes, because the block leaves again before it is written.
  bool keeps_host_copy = false;
};

struct MoveSchedule {
  std::vector<Move> moves;  // in the order of `need`
  std::uint64_t arriving_bytes = 0;
  std::uint64_t leaving_bytes = 0;
  // Kernels that use more blocks than there are chunks. Only as many are moved for them; for the
  // others the driver must act.
  std::vector<std::size_t> too_large;
};

struct ScheduleOptions {
  std::size_t chunks = 0;          // that blocks can have of the device
  bool keeps_host_copies = false;  // blocks that were only read leave without a copy
};

// Nothing is on the device before the first kernel.
MoveSchedule schedule_moves(const UseOrder& order, const ScheduleOptions& options,
                            const VictimChoice& choice);

}  // namespace uvm::plan
