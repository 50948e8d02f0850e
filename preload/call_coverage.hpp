// How often each interposed allocation call of CUDA was served, and how often it was passed on and
// why. Counts while UVMALLOC_CUDA asks for serving. Thread-safe; needs no memory to count.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvm::preload {

// The interposed calls: those of served_calls.inc, then those of left_calls.inc. The names stand
// behind ##, because cuda.h defines macros of some of them.
enum Call : std::uint8_t {
#define SERVED(symbol, library, table) kCall_##symbol,
#include "preload/served_calls.inc"
#undef SERVED
#define LEFT(symbol, library, table) kCall_##symbol,
#include "preload/left_calls.inc"
#undef LEFT
  kCalls
};

enum class Outcome : std::uint8_t {
  kServed,
  kExcluded,     // UVMALLOC_EXCLUDE, or a library that is excluded always
  kNoMemory,     // for the block, or for its records: CUDA is asked
  kLeft,         // the call, or this use of it, is left to CUDA on purpose
  kBeyondLimit,  // a limit of this process refuses it
};
inline constexpr std::size_t kOutcomes = 5;

void count(Call call, Outcome outcome) noexcept;

// A library or program asked the driver for a function by name. One that asks for many has CUDA's
// runtime inside.
void note_lookup(const void* caller) noexcept;

// From now on the report tells the counts.
void report_coverage();

}  // namespace uvm::preload
