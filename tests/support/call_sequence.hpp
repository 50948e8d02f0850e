// Sequences of calls to an allocator on a fake machine, read from bytes. A model predicts the
// result of every call, and every figure. The property test makes random bytes; the fuzzer looks
// for bytes that reach more code. Calls come from two threads in turn, so that a sequence is the
// same each time.
//
// Any bytes are a sequence; it ends with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace uvm::testing {

// Empty, or in one line where allocator and model differ. A broken invariant of the allocator
// aborts.
std::string run_call_sequence(std::span<const std::uint8_t> bytes);

}  // namespace uvm::testing
