// The tuning constants of the preloaded library, each with its unit and its reason.
#pragma once

#include <cstddef>

namespace uvm::policy {

// The most deferred frees: the device may still use these blocks (DeferredFrees). If the blocks of
// a device reach one of these limits, uvmalloc waits for the device. Benchmark key: pair_ns of
// any_program.json (docs/internals/benchmarks.md).
inline constexpr std::size_t kMostDeferredBlocks = 64;
inline constexpr std::size_t kMostDeferredBytes = std::size_t{256} << 20;

// The number of callers that Exclusions caches. A program has few places that allocate.
inline constexpr std::size_t kKnownCallers = 256;
// Served blocks are listed in this many parts, so that threads rarely contend for a mutex.
inline constexpr std::size_t kBlockShards = 16;

// If a library has looked up this many functions, it contains a CUDA runtime, which looks up about
// 400. Other libraries look up only the few that they use (call_coverage.cpp).
inline constexpr int kLookupsOfARuntime = 100;

}  // namespace uvm::policy
