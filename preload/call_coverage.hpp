// Counts how often each allocation call was served, and how often it was forwarded and why, while
// UVMALLOC_CUDA is on. Thread-safe; counting allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "preload/calls.hpp"

namespace uvm::preload {

enum class Outcome : std::uint8_t {
  kServed,
  kExcluded,     // UVMALLOC_EXCLUDE, or a library that is always excluded
  kNoMemory,     // forwarded: no memory for the block or its records
  kForwarded,    // forwarded: uvmalloc does not serve this call, or not with these arguments
  kBeyondLimit,  // refused: above a limit of this process
};
inline constexpr std::size_t kOutcomes = 5;

void count(Call call, Outcome outcome) noexcept;

// Counts, for the library at `caller`, a look-up of a driver's function by name. A library that
// looks up many functions contains a static copy of CUDA's runtime.
void note_lookup(const void* caller) noexcept;

// Adds the counts to uvmalloc's report from now on.
void report_coverage();

}  // namespace uvm::preload
