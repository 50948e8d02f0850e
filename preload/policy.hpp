// The numbers by which the preloaded library serves a program, each with its unit and its reason.
#pragma once

#include <cstddef>

namespace uvm::policy {

// Frees that wait for a device, because the program may still use the block there (DeferredFrees).
// If the blocks of a device reach one of these limits, uvmalloc waits for the device. Benchmark
// key: pair_ns of any_program.json (docs/internals/benchmarks.md).
inline constexpr std::size_t kMostDeferredBlocks = 64;
inline constexpr std::size_t kMostDeferredBytes = std::size_t{256} << 20;

// Callers whose answer is remembered (Exclusions). A program has few places that allocate.
inline constexpr std::size_t kKnownCallers = 256;
// Served blocks are listed in this many parts, so that threads seldom contend for a mutex.
inline constexpr std::size_t kBlockShards = 16;

// A file that looked up this many functions contains a CUDA runtime, which looks up some 400; other
// libraries look up the few that they use (call_coverage.cpp).
inline constexpr int kLookupsOfARuntime = 100;

}  // namespace uvm::policy
