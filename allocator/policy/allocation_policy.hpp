// The tuning constants of the allocator: where blocks are placed, how much memory is taken, and
// when work is done. Each constant has its unit, its reason and the benchmark key that measures it
// (docs/internals/benchmarks.md). Constants that follow from types or layouts are defined beside
// those.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "storage/pages.hpp"

namespace uvm::policy {

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// ---- Block sizes (size_classes.hpp)

// The largest small object. A program has many such blocks, and a record and a page for each would
// cost more than the blocks. Benchmark key: metadata_percent.
inline constexpr std::size_t kSmallBytes = 4 * kKiB;
// From this size on, threads seldom cache blocks, because a cached block cannot be joined with its
// neighbours. Benchmark key: touched_over_live after 1,000 more steps.
inline constexpr std::size_t kLargeBytes = 64 * kKiB;
// From this size on, host blocks get whole 2 MiB pages, so that each block can be moved and advised
// separately. Benchmark key: prefetches_per_move.
inline constexpr std::size_t kPageGranularBytes = kMiB;

// ---- Choosing and splitting free blocks (touched_over_live, touched_over_live_mean)

// When a free block is split, a remainder below 1/kRequestsPerRest of the request and below
// kMostRestBytes stays with the block. Few requests would fit into such a remainder. As a separate
// block in use it would lie between its two neighbours, which then could not merge when freed.
inline constexpr std::size_t kRequestsPerRest = 32;
inline constexpr std::size_t kMostRestBytes = kPageBytes / 4;
// Free blocks are kept in bins by size, kBinsOfOctave for each power of two. Blocks in the next
// kCloseBins bins above a request (up to 50 % larger) count as close fits.
inline constexpr std::size_t kBinsOfOctave = 8;
inline constexpr std::size_t kCloseBins = 4;
// An aligned request tries this number of free blocks, then takes one large enough at any address.
inline constexpr int kTriesForAligned = 16;
// Placement conserves pages if more than 1/kConserveFromParts of the budget, or of the device's
// limit, is in use. Benchmark key: least_budget_mean. See
// docs/internals/rationale/whole-pages-under-pressure.md.
inline constexpr std::size_t kConserveFromParts = 2;

// ---- Thread caches (pair_ns, replay_ns)

// A thread caches for a stream at most 1/kThreadCacheParts of the budget, or 64 MiB if that is
// more.
inline constexpr std::size_t kThreadCacheParts = 8;
inline constexpr std::size_t kLeastThreadCacheBytes = 64 * kMiB;
// The most blocks in a bin, and the most bytes in a bin of small objects. An optimizer frees
// hundreds of its smallest blocks in each step and requests the same number in the next.
inline constexpr std::uint32_t kBinBlocks = 64;
inline constexpr std::size_t kSmallBinBytes = 512 * kKiB;
// The number of small objects that a full bin gives back at once.
inline constexpr std::uint32_t kFlushedBlocks = 32;
// The number of recently used streams that a thread finds without a search.
inline constexpr std::size_t kRecentStreams = 16;
// A thread remembers the records of its last 2^kKnownBlockBits blocks, so that a free needs no
// look-up in the page directory. With 1,000 live blocks, four of five frees find their record.
inline constexpr unsigned kKnownBlockBits = 12;

// ---- The state lock (two_thread_scaling)

// After this many locks in a row by one thread, the lock is biased to that thread. The end of a
// bias costs a barrier of all processors, so a lock that threads use in turn must have no bias.
inline constexpr unsigned kTurnsToBias = 64;

// ---- Large blocks in thread caches (two_thread_scaling;
// docs/internals/rationale/large-blocks-in-threads.md)

// Threads cache large blocks of a pool after the pool has served kLargeHitsRequired large requests:
// several steps of a training loop. Each time a request needed the memory of cached large blocks,
// the number grows by the factor kLargeBackOff.
inline constexpr std::uint64_t kLargeHitsRequired = 8192;
inline constexpr std::uint64_t kLargeBackOff = 8;
inline constexpr std::uint64_t kMostLargeHitsRequired = std::uint64_t{1} << 60;
// Threads stop caching large blocks if more than one request in kRequestsPerLargeMiss is for a
// large block that is not in the cache.
inline constexpr std::uint64_t kRequestsPerLargeMiss = 1024;
// At every kRequestsPerTrim-th large request that the pool serves, the thread returns its cached
// large blocks. It also returns its medium blocks if they exceed 1/kMediumParts of the bytes in
// use. A smaller part would slow random replacements by 15 %. A larger part would take 5 % more
// pages when the length of steps varies.
inline constexpr std::uint64_t kRequestsPerTrim = 16;
inline constexpr std::size_t kMediumParts = 512;

// ---- Small objects

// jemalloc's arenas grow by segments of this size.
inline constexpr std::size_t kSmallSegmentBytes = 256 * kKiB;
// A thread fetches small objects in batches: about kRefillBytes, and at most kRefillBlocks objects.
inline constexpr std::size_t kRefillBytes = 16 * kKiB;
inline constexpr std::size_t kRefillBlocks = 16;
// The most small objects that one call returns to an arena.
inline constexpr std::size_t kReturnedBlocks = 64;
// The number of retries if a page is free, but other threads take all segments cut from that page.
inline constexpr unsigned kSmallRetries = 56;

// ---- Spans (least_budget_mean, steady_driver_calls)

// If pages of a span can be returned one by one, the span may be as large as the budget. Its unused
// part costs only address space, while blocks of two smaller spans could never be joined.
inline constexpr std::size_t kMostSpanBytes = std::size_t{1} << 40;
// Other spans stay small, because one live block prevents the return of a whole span. A small span
// has kLeastSpanBytes. On a device it also has at least kRequestsPerSpan times the size of the
// request that needs the span.
inline constexpr std::size_t kLeastSpanBytes = 32 * kMiB;
inline constexpr std::size_t kRequestsPerSpan = 8;
// A search compares this number of free runs and takes the best. If none of these fits, it takes
// the first later run that fits.
inline constexpr std::size_t kComparedRuns = 64;
// Before a new host span is made, idle host spans are returned if together they hold more than
// kLeastSurplusBytes and more than 1/kSurplusParts of the bytes in use. A C library returns such
// memory at once. Benchmark key: resident_over_stock.
inline constexpr std::size_t kLeastSurplusBytes = 64 * kMiB;
inline constexpr std::size_t kSurplusParts = 4;

// ---- Budget

// Memory that stays free unless UVMALLOC_RESERVE is set: this part of all memory (host 1/16, device
// 1/64), at most 512 MiB. A device's reserve is for the program's own context.
inline constexpr std::size_t kHostReserveParts = 16;
inline constexpr std::size_t kDeviceReserveParts = 64;
inline constexpr std::size_t kMostReserveBytes = 512 * kMiB;

// ---- Fences (churn_ns)

// One drain queries the next kStreamsPerDrain streams, and up to kFencesPerStream fences of each.
inline constexpr std::size_t kStreamsPerDrain = 8;
inline constexpr std::size_t kFencesPerStream = 16;

// ---- How far the host may run ahead of the devices (resident_over_stock)

// A pageable host request waits for the oldest freed block that a device still uses, instead of
// taking new pages. It does so if such blocks of its pool hold more than kHostLeadBytes and more
// than kHostLeadBlocks times the request. With two blocks, the host fills one while a device works
// on the other. Torch's own allocator also has two, one on the host and one on the device.
inline constexpr std::size_t kHostLeadBytes = 32 * kMiB;
inline constexpr std::size_t kHostLeadBlocks = 2;

// ---- Idle memory (UVMALLOC_DECAY)

// The clock is read after this many hits of a thread's cache for one stream (a power of two), and
// after this many slow calls.
inline constexpr std::uint64_t kHitsPerClockRead = 4096;
inline constexpr unsigned kSlowCallsPerClockRead = 64;
// Memory counts as idle if it stayed free for 1/kDecayPeriods of the half-life.
inline constexpr int kDecayPeriods = 8;

// ---- Programs that search for their largest batch (SpillLimit)

// A program counts as searching if its largest request for a device has grown kSearchGrowths times,
// each time at least by the factor kSearchGrowth. Requests below 1/kSearchDeviceParts of the device
// do not count.
inline constexpr unsigned kSearchGrowths = 4;
inline constexpr double kSearchGrowth = 1.05;
inline constexpr std::size_t kSearchDeviceParts = 256;
// Without a setting, a step thrashes if it is slower than with enough memory by this factor.
inline constexpr double kThrashSlowdown = 2;

// ---- Statistics and fork

// When a thread has used up its headroom below a peak, all other threads together get less than
// 1/kHeadroomParts of what is left below the peak. This thread gets the rest.
inline constexpr std::int64_t kHeadroomParts = 2;
// The most ended private pools that statistics list, about 110 bytes each. The bound is for servers
// that capture graphs, and so end private pools, all the time.
inline constexpr std::size_t kListedEndedPools = 256;
// A fork that copies more than this number of bytes is logged in one line.
inline constexpr std::size_t kReportedCopyBytes = 256 * kMiB;
// A file of an earlier fork is reused if at least 1/kReusedFileParts of it still equals live bytes.
inline constexpr std::size_t kReusedFileParts = 2;

// After this many consecutive kernels that use no group, a group that has woken counts as unused:
// its order is no longer learned, and no kernel waits for its pages any more. Reporting a kernel
// takes about a microsecond.
inline constexpr std::size_t kMostUnrelatedKernels = 10'000;

}  // namespace uvm::policy
