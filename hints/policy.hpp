// The tuning constants of hints and of turns on a device, each with its unit, its reason and the
// benchmark key that measures it (docs/internals/benchmarks.md). The constants of the live planner
// are in hints/oversubscription/policy.hpp. Constants that follow from types or layouts are defined
// beside those.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "storage/pages.hpp"

namespace uvm::policy {

// ---- Prefetches (HintSender; prefetches_per_move)

// A copy of this size or more is sent in pieces. For a smaller copy the calls cost more than the
// overlap gains.
inline constexpr std::size_t kLeastSplitBytes = 32 * kPageBytes;
// The first piece is small because no copy runs while the driver prepares it. Each piece is twice
// as large as the previous piece, so that its preparation ends when the previous copy ends.
inline constexpr std::size_t kFirstPieceBytes = kPageBytes;
inline constexpr std::size_t kMostPieceBytes = 32 * kPageBytes;
// The number of pages that a bulk move sends by one call (BulkMoves): enough to hide the driver's
// preparation of the next piece, but few, because a piece waits until there is room for all its
// pages (swap_over_to).
inline constexpr std::size_t kBulkPiecePages = 16;
// The most prefetches that wait for the prefetch thread, and the most advice that waits for the end
// of a capture. Hints that do not fit are dropped and counted. Both queues are arrays of this
// length.
inline constexpr std::size_t kMostWaitingPrefetches = 256;
inline constexpr std::size_t kMostWaitingAdvice = 256;

// ---- Placement (PlacementPlanner; prefetches_per_move)

// If the preferred place of a block has changed more often than this, it becomes the host for good,
// and the device uses the block there.
inline constexpr unsigned kPingPongChanges = 2;
// While a device fills up, the driver's free memory is read this number of times.
inline constexpr std::size_t kReadsWhileFilling = 4;

// ---- Turns on a shared device (hints/sharing; docs/reference/planning.md)

// The bandwidth of one direction of a PCIe 4 link with 16 lanes. A change of programs is assumed to
// move memory at this rate. The time of a turn is kept between two limits.
inline constexpr double kTurnLinkBytesPerNs = 24.0;
inline constexpr std::uint64_t kLeastChangeNs = 5'000'000;
inline constexpr std::uint64_t kMostChangeNs = 3'000'000'000;
// A turn is this many times as long as a change of programs, so that changes take 5 % of the time.
inline constexpr std::uint64_t kChangesPerTurn = 20;
// A program waits this long for the table's lock, then runs without turns. The lock is held for
// microseconds.
inline constexpr std::uint64_t kMostTableLockNs = 1'000'000'000;
// A waiting program checks at least this often whether the holder of the turn is idle or has ended.
inline constexpr std::chrono::nanoseconds kLongestNap{50'000'000};
// The time between two reads of the memory that a program holds.
inline constexpr std::chrono::milliseconds kHeldBytesPeriod{250};

}  // namespace uvm::policy
