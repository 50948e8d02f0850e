// The numbers by which hints are sent and programs take turns on a device, each with its unit, its
// reason and the benchmark key that judges it (docs/internals/benchmarks.md). The numbers of the
// live planner are in hints/oversubscription/policy.hpp. Numbers that follow from types or layouts
// are defined beside those.
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
// The first piece is small because nothing is copied while the driver prepares it. Each piece is
// twice as large as the one before, so that its preparation ends when the copy before it ends.
inline constexpr std::size_t kFirstPieceBytes = kPageBytes;
inline constexpr std::size_t kMostPieceBytes = 32 * kPageBytes;
// Pages that a bulk move sends by one call (BulkMoves): enough to hide the driver's preparation of
// the next piece, and few beside the room that a piece waits for (swap_over_to).
inline constexpr std::size_t kBulkPiecePages = 16;
// Prefetches that wait for the prefetch thread, and advice that waits for the end of a capture.
// Hints that do not fit are left out and counted. Both queues are arrays of this length.
inline constexpr std::size_t kMostWaitingPrefetches = 256;
inline constexpr std::size_t kMostWaitingAdvice = 256;

// ---- Placement (PlacementPlanner; prefetches_per_move)

// A block whose preferred place has changed more often than this prefers the host from then on, and
// the device uses it there.
inline constexpr unsigned kPingPongChanges = 2;
// While a device fills up, the driver's free memory is read this number of times.
inline constexpr std::size_t kReadsWhileFilling = 4;

// ---- Turns on a shared device (hints/sharing; docs/reference/planning.md)

// The bandwidth of one direction of a PCIe 4 link with 16 lanes. At this speed the memory of one
// program leaves a device, and that of the next comes. The time is kept between two limits.
inline constexpr double kTurnLinkBytesPerNs = 24.0;
inline constexpr std::uint64_t kLeastChangeNs = 5'000'000;
inline constexpr std::uint64_t kMostChangeNs = 3'000'000'000;
// A turn is this many times as long as a change of programs, so that changes take 5 % of the time.
inline constexpr std::uint64_t kChangesPerTurn = 20;
// A program waits this long for the table's lock, then runs without turns. The lock is held for
// microseconds.
inline constexpr std::uint64_t kMostTableLockNs = 1'000'000'000;
// A waiting program looks at least this often whether the holder of the turn is idle or gone.
inline constexpr std::chrono::nanoseconds kLongestNap{50'000'000};
// The time between two reads of the memory that a program holds.
inline constexpr std::chrono::milliseconds kHeldBytesPeriod{250};

}  // namespace uvm::policy
