// The tuning constants of groups, with their reasons and the benchmark keys that measure them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace uvm::policy {

// If more than 1/kWrittenParts of the pages were written to since a group woke, the host keeps no
// copies at the next wake, because each written page costs a page fault (second_sleep_bytes,
// swap_over_to).
inline constexpr std::size_t kWrittenParts = 16;

// The number of pages that are advised and prefetched together. The driver takes some microseconds
// to advise a page, a tenth of the time of its copy (wake_over_link).
inline constexpr std::size_t kAdvisedPages = 64;

// The order of first uses counts as learned if pages that the order contains were used this many
// times for each of its runs of pages.
inline constexpr std::size_t kRepeatedUses = 4;
// The order is learned again if more than 1/kUnknownParts of a group's pages are unknown.
inline constexpr std::size_t kUnknownParts = 16;

// The number of pages that one call reads from a file or writes to it: 8 MiB, at which disks reach
// their bandwidth.
inline constexpr std::size_t kFilePiecePages = 4;
// The number of pages of a file that one mapping turns into memory: 1 GiB. One mapping for each
// page would reach the kernel's limit of 65,530 mappings at 128 GiB.
inline constexpr std::size_t kMostPagesAtOnce = 512;
// Pages that change while they are written to a file are written again. After this many rounds the
// sleep fails, because the program is using them.
inline constexpr std::size_t kMostRewrites = 3;

// The host's memory is short if less than 1/kShortParts of it is available, or if programs have
// waited for memory for 1/kStalledParts of the time. It is nearly short at twice these values; from
// then on uses are observed. A machine with one memory hangs instead of failing if no memory is
// left, so groups have to be written before that.
inline constexpr std::size_t kShortParts = 16;
inline constexpr std::int64_t kStalledParts = 10;
// How often the thread reads the host's memory, and how often while that memory is nearly short. A
// group is idle for this purpose if nothing has used it for kUnusedWhenShort while uses were
// observed.
inline constexpr std::chrono::nanoseconds kMemoryLook = std::chrono::seconds(1);
inline constexpr std::chrono::nanoseconds kNearMemoryLook = std::chrono::milliseconds(100);
inline constexpr std::chrono::nanoseconds kUnusedWhenShort = std::chrono::seconds(1);

// The shortest and longest times between two checks by the thread for idle groups.
inline constexpr std::chrono::nanoseconds kShortestIdleLook = std::chrono::milliseconds(1);
inline constexpr std::chrono::nanoseconds kLongestIdleLook = std::chrono::hours(1);
// No group is put to sleep while a stream is being captured; the thread checks again after this
// time.
inline constexpr std::chrono::nanoseconds kIdleRetry = std::chrono::milliseconds(100);

}  // namespace uvm::policy
