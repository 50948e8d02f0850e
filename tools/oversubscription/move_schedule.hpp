// Decides which blocks arrive at a device and which are evicted, for a known order of uses. Each
// arrival gets a free chunk, or the chunk of a block that is evicted for it. So an arrival can be
// sent as soon as the last use of the evicted block has ended, long before the arriving block is
// needed. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hints/oversubscription/victim_choice.hpp"

#include "tools/oversubscription/use_order.hpp"

namespace uvm::plan {

enum class Leaving : std::uint8_t {
  kNothing,  // the arriving block takes a free chunk
  kCopied,
  kDropped,    // its contents are not needed
  kUnchanged,  // the host still has the same bytes
};

struct Move {
  std::uint32_t block = 0;
  std::uint64_t arriving_bytes = 0;  // 0: there is nothing to copy
  Leaving leaving = Leaving::kNothing;
  std::uint32_t victim = 0;         // the block that is evicted, if any
  std::uint64_t leaving_bytes = 0;  // copied to the host
  // The earliest kernel before which the move can be sent: all uses of the victim come earlier.
  std::size_t after = 0;
  std::size_t need = 0;  // the kernel that must wait for it
  // The host keeps its copy, because the block is evicted again before it is written.
  bool keeps_host_copy = false;
};

struct MoveSchedule {
  std::vector<Move> moves;  // in the order of `need`
  std::uint64_t arriving_bytes = 0;
  std::uint64_t leaving_bytes = 0;
  // Kernels that use more blocks than there are chunks. The schedule moves as many blocks as fit;
  // the driver must move the others.
  std::vector<std::size_t> too_large;
};

struct ScheduleOptions {
  std::size_t chunks = 0;          // chunks of the device for blocks
  bool keeps_host_copies = false;  // blocks that were only read are evicted without a copy
};

// Returns the moves for `order`. Nothing is on the device before the first kernel.
MoveSchedule schedule_moves(const UseOrder& order, const ScheduleOptions& options,
                            const VictimChoice& choice);

}  // namespace uvm::plan
