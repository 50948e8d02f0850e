// The numbers by which groups decide, with their reasons and the benchmark keys that judge them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace uvm::policy {

// If more than 1/kWrittenParts of the pages were written to since a group woke, the host keeps no
// copies next time: each written page costs a page fault (second_sleep_bytes, swap_over_to).
inline constexpr std::size_t kWrittenParts = 16;

// Pages that wake by one step if they get advice: the driver takes some microseconds to advise one,
// a tenth of the time of its copy (wake_over_link).
inline constexpr std::size_t kAdvisedPages = 64;

// The order of first uses is learned once known pages were used so many times for each known run.
inline constexpr std::size_t kRepeatedUses = 4;
// It is learned again if more than 1/kUnknownParts of a group's pages are unknown.
inline constexpr std::size_t kUnknownParts = 16;

// Pages that one call reads from a file or writes to it: 8 MiB, at which disks reach their rate.
inline constexpr std::size_t kFilePiecePages = 4;
// Pages of a file that become memory by one mapping: 1 GiB. A mapping of its own for each page
// would reach the kernel's limit of 65,530 mappings at 128 GiB.
inline constexpr std::size_t kMostPagesAtOnce = 512;
// Pages that change while they are written to a file are written again; after so many rounds the
// sleep fails, because the program is at work on them.
inline constexpr std::size_t kMostRewrites = 3;

// The host's memory is short if less than 1/kShortParts of it is available, or if programs have
// waited for memory for 1/kStalledParts of the time. It is nearly short at twice that; from then on
// uses are observed. A machine with one memory that reaches 0 hangs instead of failing, and the
// groups have to be written before.
inline constexpr std::size_t kShortParts = 16;
inline constexpr std::int64_t kStalledParts = 10;
// How often the thread reads that, and while the memory is nearly short. A group is idle for this
// purpose if nothing has used it for so long while uses were observed.
inline constexpr std::chrono::nanoseconds kMemoryLook = std::chrono::seconds(1);
inline constexpr std::chrono::nanoseconds kNearMemoryLook = std::chrono::milliseconds(100);
inline constexpr std::chrono::nanoseconds kUnusedWhenShort = std::chrono::seconds(1);

// How often the thread of idle groups looks: at most, and at least although nothing is due.
inline constexpr std::chrono::nanoseconds kShortestIdleLook = std::chrono::milliseconds(1);
inline constexpr std::chrono::nanoseconds kLongestIdleLook = std::chrono::hours(1);
// Nothing sleeps while a stream is being captured; the thread looks again after so long.
inline constexpr std::chrono::nanoseconds kIdleRetry = std::chrono::milliseconds(100);

}  // namespace uvm::policy
