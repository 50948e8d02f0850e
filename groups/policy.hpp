// The tuning constants of groups, with their reasons and the benchmark keys that measure them.
#pragma once

#include <chrono>
#include <cstddef>

namespace uvm::policy {

// If more than 1/kWrittenParts of the pages were written to since a group woke, the host keeps no
// copies at the next wake, because each written page costs a page fault (second_sleep_bytes,
// swap_over_to).
inline constexpr std::size_t kWrittenParts = 16;

// The number of pages that are advised and prefetched together. The driver takes some microseconds
// to advise a page, a tenth of the time of its copy (wake_over_link).
inline constexpr std::size_t kAdvisedPages = 64;

// The order of first uses counts as learned after this many uses of known pages for each known run.
inline constexpr std::size_t kRepeatedUses = 4;
// The order is learned again if more than 1/kUnknownParts of a group's pages are unknown.
inline constexpr std::size_t kUnknownParts = 16;

// The shortest and longest times between two checks by the thread for idle groups.
inline constexpr std::chrono::nanoseconds kShortestIdleLook = std::chrono::milliseconds(1);
inline constexpr std::chrono::nanoseconds kLongestIdleLook = std::chrono::hours(1);
// No group is put to sleep while a stream is being captured; the thread checks again after this
// time.
inline constexpr std::chrono::nanoseconds kIdleRetry = std::chrono::milliseconds(100);

}  // namespace uvm::policy
