// Sequences of calls to an allocator on a fake machine, read from bytes. A model predicts the
// result of every call, and every figure. The property test makes random bytes; the fuzzer looks
// for bytes that reach more code. Calls come from two threads in turn, so a sequence always runs
// the same way.
//
// Any bytes are a valid sequence, which ends with the last byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace uvm::testing {

// Returns an empty string, or one line that says where allocator and model differ. A broken
// invariant of the allocator aborts.
std::string run_call_sequence(std::span<const std::uint8_t> bytes);

}  // namespace uvm::testing
