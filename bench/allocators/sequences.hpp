// Makers of operation sequences: seeded, so that each call with the same arguments gives the same
// list. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "operation_sequence.hpp"

namespace uvm::bench {

struct ChurnShape {
  std::uint32_t live = 1000;
  std::uint64_t least_bytes = 512;
  std::uint64_t most_bytes = std::uint64_t{64} << 20;
  std::size_t warm_replacements = 2000;  // the first step, with the fill
  std::size_t replacements = 20000;      // split evenly over `timed_steps` further steps
  std::size_t timed_steps = 5;
  std::uint64_t seed = 1;
};
// `live` blocks of log-uniform sizes; then a random one is freed and another allocated, over and
// over.
OperationSequence churn(const ChurnShape& shape);

// After RMM's random_allocations benchmark. With an even chance it allocates (1 byte to
// `most_bytes`, uniform) or frees a random live block, `allocations` times. An allocation that
// would exceed `live_limit_bytes` becomes a free. Each of the `steps` is this list and ends with
// nothing live.
OperationSequence random_grid(std::size_t allocations, std::uint64_t most_bytes,
                              std::uint64_t live_limit_bytes, std::size_t steps,
                              std::uint64_t seed);

// What the device facade of a traced program was asked for (docs/trace.md), on one device. Its
// marks bound the steps: what precedes the first one belongs to no step, what follows the last one
// is left out. Throws TraceFormatError, or std::runtime_error where the trace has fewer than two
// marks or nothing of the device facade.
OperationSequence traced_steps(const std::string& trace);

// Appends the steps from number `first` on `times` times more, like a program that goes on. Blocks
// that were live at their beginning need a substitute: a live block of the same size at their end,
// the oldest first. If there are too many or too few of a size, the next step begins with frees and
// allocations.
void repeat_steps(OperationSequence& sequence, std::size_t first, std::size_t times);

// The same with one to eight more blocks of 512 B to 8 MiB, which stay to the end. One in three is
// allocated somewhere in the first step, the others at the beginning. The places of all blocks
// depend on these few.
OperationSequence with_random_beginning(const OperationSequence& sequence, std::uint64_t seed);

// `count` different multiples of 512 B, as evenly spaced in octaves from 512 B to 32 MiB as that
// allows, in random order.
std::vector<std::uint64_t> spread_sizes(std::size_t count, std::uint64_t seed);

}  // namespace uvm::bench
