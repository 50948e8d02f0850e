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

// A graph that uses more than this share (1/n) of the device is divided into parts, each of which
// uses at most the second share if its kernels allow that. So the memory of a part arrives while
// the parts before it run, and that of a small graph costs no more launches. Judged by the table of
// graphs in docs/internals/oversubscription.md.
inline constexpr std::size_t kDividedShare = 2;
inline constexpr std::size_t kPartShare = 8;

// If a library has looked up this many functions, it contains a CUDA runtime, which looks up about
// 400. Other libraries look up only the few that they use (call_coverage.cpp).
inline constexpr int kLookupsOfARuntime = 100;

}  // namespace uvm::policy
