// Every number that decides where blocks lie, how much memory is taken or when work is done.
// Each has its unit, its reason and the benchmark key that judges it (docs/benchmarks.md). Numbers
// that follow from types or layouts stay beside those.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "storage/pages.hpp"

namespace uvm::policy {

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// ---- Sizes of blocks (size_classes.hpp)

// Largest small object. A program has many such blocks; one record and one page for each would cost
// more than the blocks. Judged by metadata_percent.
inline constexpr std::size_t kSmallBytes = 4 * kKiB;
// From here on threads seldom cache blocks: a cached block cannot be joined with its neighbours.
// Judged by touched_over_live after 1,000 more steps.
inline constexpr std::size_t kLargeBytes = 64 * kKiB;
// From here on host blocks get whole 2 MiB pages, so that they can be moved and advised alone.
// Judged by prefetches_per_move.
inline constexpr std::size_t kPageGranularBytes = kMiB;

// ---- Free blocks: fit, split, rest (touched_over_live, touched_over_live_mean)

// A rest below 1/kRequestsPerRest of the request and below kMostRestBytes stays with the block. Few
// requests would fit into it, and it would keep its neighbours apart until both are free.
inline constexpr std::size_t kRequestsPerRest = 32;
inline constexpr std::size_t kMostRestBytes = kPageBytes / 4;
// The fit is chosen among bins of an eighth of an octave. Blocks in the next four bins, which are
// up to half too large, count as close.
inline constexpr std::size_t kBinsOfOctave = 8;
inline constexpr std::size_t kCloseBins = 4;
// Free blocks that are tried for an aligned request before a block is taken that fits it anywhere.
inline constexpr int kTriesForAligned = 16;
// Pages are conserved once more than 1/kConserveFromParts of the budget, or of the device's limit,
// is in use. Judged by least_budget_mean; docs/rationale/whole-pages-under-pressure.md.
inline constexpr std::size_t kConserveFromParts = 2;

// ---- Thread caches (pair_ns, replay_ns)

// A thread caches at most 1/kThreadCacheParts of the budget for one stream, or 64 MiB if that is
// more.
inline constexpr std::size_t kThreadCacheParts = 8;
inline constexpr std::size_t kLeastThreadCacheBytes = 64 * kMiB;
// The most blocks in a bin, and the most bytes in the bin of one small size: an optimizer frees
// hundreds of its smallest blocks in each step and requests as many in the next.
inline constexpr std::uint32_t kBinBlocks = 64;
inline constexpr std::size_t kSmallBinBytes = 512 * kKiB;
// Small objects that leave a full bin together.
inline constexpr std::uint32_t kFlushedBlocks = 32;

// ---- Large blocks in thread caches (two_thread_scaling;
// docs/rationale/large-blocks-in-threads.md)

// Threads cache large blocks of a pool once it has served kLargeHitsRequired large requests, which
// are several steps of a training loop. Each time that cached large blocks were in the way, the
// number grows by the factor kLargeBackOff.
inline constexpr std::uint64_t kLargeHitsRequired = 8192;
inline constexpr std::uint64_t kLargeBackOff = 8;
inline constexpr std::uint64_t kMostLargeHitsRequired = std::uint64_t{1} << 60;
// Threads stop caching them if more than one request in kRequestsPerLargeMiss is for a large block
// and finds none in the cache.
inline constexpr std::uint64_t kRequestsPerLargeMiss = 1024;
// At every kRequestsPerTrim-th large request that the pool serves, the thread returns its cached
// large blocks, and its medium ones if they exceed 1/kMediumParts of the bytes in use. A smaller
// part would slow random replacements by 15 %, a larger one would take 5 % more pages when a step's
// length varies.
inline constexpr std::uint64_t kRequestsPerTrim = 16;
inline constexpr std::size_t kMediumParts = 512;

// ---- Small objects

// The size of the segments by which jemalloc's arenas grow.
inline constexpr std::size_t kSmallSegmentBytes = 256 * kKiB;
// A thread fetches about kRefillBytes of small objects at once, and at most kRefillBlocks objects.
inline constexpr std::size_t kRefillBytes = 16 * kKiB;
inline constexpr std::size_t kRefillBlocks = 16;
// The most small objects that one call returns to an arena.
inline constexpr std::size_t kReturnedBlocks = 64;
// Retries while a page is free and other threads take the segments made of it.
inline constexpr unsigned kSmallRetries = 56;

// ---- Spans (least_budget_mean, steady_driver_calls)

// A span whose pages can go back one by one may be as large as the budget: it costs only address
// space, and free blocks of two spans are never joined.
inline constexpr std::size_t kMostSpanBytes = std::size_t{1} << 40;
// Other spans stay small, since one live block keeps all pages of its span: kLeastSpanBytes, and on
// a device at least kRequestsPerSpan times the request that needs the span.
inline constexpr std::size_t kLeastSpanBytes = 32 * kMiB;
inline constexpr std::size_t kRequestsPerSpan = 8;
// Free runs that are compared; behind them the first that fits is taken.
inline constexpr std::size_t kComparedRuns = 64;
// Idle host spans go back before a new one is made if they hold more than kLeastSurplusBytes, and
// more than 1/kSurplusParts of the bytes in use. A C library gives such memory back at once. Judged
// by resident_over_stock.
inline constexpr std::size_t kLeastSurplusBytes = 64 * kMiB;
inline constexpr std::size_t kSurplusParts = 4;

// ---- Budget

// Memory that is kept free unless UVMALLOC_RESERVE is set: a part of all memory, at most 512 MiB. A
// device's reserve is for the program's context, or a part of it.
inline constexpr std::size_t kHostReserveParts = 16;
inline constexpr std::size_t kDeviceReserveParts = 64;
inline constexpr std::size_t kMostReserveBytes = 512 * kMiB;

// ---- Fences (churn_ns)

// Streams that one drain queries, in turn, and fences that it queries of each.
inline constexpr std::size_t kStreamsPerDrain = 8;
inline constexpr std::size_t kFencesPerStream = 16;

// ---- The host's lead over the devices (resident_over_stock)

// A pageable host request waits for the oldest block that a device still uses, instead of taking
// new pages, once such blocks of its pool hold more than kHostLeadBytes, and more than
// kHostLeadBlocks times the request. Two let the host fill a batch while a device works on another;
// torch's own allocator has one on the host and one on the device.
inline constexpr std::size_t kHostLeadBytes = 32 * kMiB;
inline constexpr std::size_t kHostLeadBlocks = 2;

// ---- Idle memory (UVMALLOC_DECAY)

// The clock is read after this many hits, a power of two, of a thread's cache for one stream, and
// after this many slow calls.
inline constexpr std::uint64_t kHitsPerClockRead = 4096;
inline constexpr unsigned kSlowCallsPerClockRead = 64;
// Memory counts as idle if it stayed free for 1/kDecayPeriods of a half-life.
inline constexpr int kDecayPeriods = 8;

// ---- Statistics and fork

// A thread that has used up its headroom below a peak gets about 1/kHeadroomParts of what is left.
inline constexpr std::int64_t kHeadroomParts = 2;
// Private pools that have ended and are still listed, about 110 bytes each. A server that captures
// graphs for ever ends pools for ever.
inline constexpr std::size_t kListedEndedPools = 256;
// Bytes that a fork copies without a line in the log.
inline constexpr std::size_t kReportedCopyBytes = 256 * kMiB;
// A file of an earlier fork is used again if at least 1/kReusedFileParts of it equals live bytes.
inline constexpr std::size_t kReusedFileParts = 2;

}  // namespace uvm::policy
