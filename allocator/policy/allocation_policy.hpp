// Every number whose change alters where blocks lie, how much memory is taken or when work is done.
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

// A rest below a 32nd of the request, and below half a MiB, stays with the block. Requests of all
// sizes seldom have a use for it, and it would keep its neighbours apart until both are free.
inline constexpr std::size_t kRequestsPerRest = 32;
inline constexpr std::size_t kMostRestBytes = kPageBytes / 4;
// The fit is chosen among bins of an eighth of an octave. Blocks in the next four bins, which are
// up to half too large, count as close.
inline constexpr std::size_t kBinsOfOctave = 8;
inline constexpr std::size_t kCloseBins = 4;
// Free blocks that are tried for aligned bytes before a surely large enough block is taken.
inline constexpr int kTriesForAligned = 16;
// Pages are conserved once more than one part in so many of the budget, or of the device's limit,
// is in use. Judged by least_budget_mean; docs/rationale/whole-pages-under-pressure.md.
inline constexpr std::size_t kConserveFromParts = 2;

// ---- Thread caches (pair_ns, replay_ns)

// Bytes that a thread caches for one stream: a part of the budget, but at least 64 MiB.
inline constexpr std::size_t kThreadCacheParts = 8;
inline constexpr std::size_t kLeastThreadCacheBytes = 64 * kMiB;
// Blocks in a bin, and bytes in the bin of one small size: an optimizer frees hundreds of its
// smallest tensors in each step and requests as many in the next.
inline constexpr std::uint32_t kBinBlocks = 64;
inline constexpr std::size_t kSmallBinBytes = 512 * kKiB;
// Small objects that leave a full bin together.
inline constexpr std::uint32_t kFlushedBlocks = 32;

// ---- Large blocks in thread caches (two_thread_scaling;
// docs/rationale/large-blocks-in-threads.md)

// Threads cache large blocks of a pool once it has served so many such requests: several steps of a
// training loop. Each time that cached large blocks were in the way, so many times as many.
inline constexpr std::uint64_t kLargeHitsRequired = 8192;
inline constexpr std::uint64_t kLargeBackOff = 8;
inline constexpr std::uint64_t kMostLargeHitsRequired = std::uint64_t{1} << 60;
// A thread stops caching them if more than one request in so many finds none that fits.
inline constexpr std::uint64_t kRequestsPerLargeMiss = 1024;
// After so many requests for large blocks that its pool served, a thread returns the blocks of
// pages that it caches. It keeps medium blocks up to this part of the bytes in use: less would
// slow random replacements by 15 %, more would take 5 % more pages when a step's length varies.
inline constexpr std::uint64_t kRequestsPerTrim = 16;
inline constexpr std::size_t kMediumParts = 512;

// ---- Small objects

// Jemalloc's arenas grow by this part of a page.
inline constexpr std::size_t kSmallSegmentBytes = 256 * kKiB;
// A thread fetches about so many bytes of small objects at once, and at most so many objects.
inline constexpr std::size_t kRefillBytes = 16 * kKiB;
inline constexpr std::size_t kRefillBlocks = 16;
// Small objects that go back to an arena with one call.
inline constexpr std::size_t kReturnedBlocks = 64;
// Retries while a page is free and other threads take the segments made of it.
inline constexpr unsigned kSmallRetries = 56;

// ---- Spans (least_budget_mean, steady_driver_calls)

// A span whose pages can go back one by one may be as large as the budget: it takes address space
// alone, and free blocks of two spans never join.
inline constexpr std::size_t kMostSpanBytes = std::size_t{1} << 40;
// Other spans stay small, since one live block keeps all of their pages: the least, and of a device
// so many requests like the one that needs it.
inline constexpr std::size_t kLeastSpanBytes = 32 * kMiB;
inline constexpr std::size_t kRequestsPerSpan = 8;
// Free runs that are compared; beyond them the first that fits is taken.
inline constexpr std::size_t kComparedRuns = 64;
// Idle host spans go back before another is made if they hold more than this, and more than this
// part of the bytes in use. A C library gives such memory back at once. Judged by
// resident_over_stock.
inline constexpr std::size_t kLeastSurplusBytes = 64 * kMiB;
inline constexpr std::size_t kSurplusParts = 4;

// ---- Budget

// Kept free unless UVMALLOC_RESERVE says otherwise: a part of the memory, at most 512 MiB. A
// device's holds the program's context, or a part of it: the driver's count of free bytes tells.
inline constexpr std::size_t kHostReserveParts = 16;
inline constexpr std::size_t kDeviceReserveParts = 64;
inline constexpr std::size_t kMostReserveBytes = 512 * kMiB;

// ---- Fences: one drain queries so many streams in turn, and so many fences of each (churn_ns)

inline constexpr std::size_t kStreamsPerDrain = 8;
inline constexpr std::size_t kFencesPerStream = 16;

// ---- The host's lead over the devices (resident_over_stock)

// A pageable host request waits for the oldest block that a device still uses, rather than take new
// pages, once blocks of its pool hold so many bytes for devices, and so many of its own size. Two
// let the host fill a batch while a device works on another; torch's own allocator has one on the
// host and one on the device.
inline constexpr std::size_t kHostLeadBytes = 32 * kMiB;
inline constexpr std::size_t kHostLeadBlocks = 2;

// ---- Idle memory (UVMALLOC_DECAY)

// The clock is read after so many hits of a thread's cache for one stream, a power of two, and
// after so many slow calls.
inline constexpr std::uint64_t kHitsPerClockRead = 4096;
inline constexpr unsigned kSlowCallsPerClockRead = 64;
// Memory counts as idle if it stayed free for this part of a half-life.
inline constexpr int kDecayPeriods = 8;

// ---- Statistics and fork

// Headroom below a peak: the thread that asks gets one part in so many of it.
inline constexpr std::int64_t kHeadroomParts = 2;
// Bytes that a fork copies without a line in the log.
inline constexpr std::size_t kReportedCopyBytes = 256 * kMiB;
// A file of an earlier fork is used again if at least one part in so many of its bytes is right.
inline constexpr std::size_t kReusedFileParts = 2;

}  // namespace uvm::policy
