// Makes operation sequences. Random numbers are seeded, so equal arguments give equal sequences.
// Pure functions.
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
// Allocates `live` blocks of log-uniform sizes. Each replacement then frees a random block and
// allocates another.
OperationSequence churn(const ChurnShape& shape);

// Follows RMM's random_allocations benchmark. With an even chance, allocates (1 byte to
// `most_bytes`, uniform) or frees a random live block, until it has made `allocations` allocations.
// An allocation that would exceed `live_limit_bytes` becomes a free. Each of the `steps` is this
// list, and ends with no live block.
OperationSequence random_grid(std::size_t allocations, std::uint64_t most_bytes,
                              std::uint64_t live_limit_bytes, std::size_t steps,
                              std::uint64_t seed);

// Returns a traced program's requests to the device facade (docs/reference/trace.md), on one
// device. The trace's marks bound the steps: operations before the first mark belong to no step,
// operations after the last mark are left out. Throws TraceFormatError, or std::runtime_error if
// the trace has fewer than two marks or no request to the device facade.
OperationSequence traced_steps(const std::string& trace);

// Appends the steps from number `first` on `times` more times, like a program that continues. In
// place of a block that was live before the steps, a repetition frees one of the same size and
// stream that the previous round left, the oldest first. If too many or too few of these are left,
// the repetition begins with frees and allocations.
void repeat_steps(OperationSequence& sequence, std::size_t first, std::size_t times);

// Returns the sequence with one to eight more blocks of 512 B to 8 MiB, which are never freed. One
// in three is allocated somewhere in the first step, the others at the beginning. These few blocks
// change the addresses of all others.
OperationSequence with_random_beginning(const OperationSequence& sequence, std::uint64_t seed);

// Returns `count` different multiples of 512 B in random order. They are spread as evenly as
// possible over the octaves from 512 B to 32 MiB.
std::vector<std::uint64_t> spread_sizes(std::size_t count, std::uint64_t seed);

}  // namespace uvm::bench
