// The numbers by which groups decide, with their reasons and the benchmark keys that judge them.
#pragma once

#include <chrono>
#include <cstddef>

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

// How often the thread of idle groups looks: at most, and at least although nothing is due.
inline constexpr std::chrono::nanoseconds kShortestIdleLook = std::chrono::milliseconds(1);
inline constexpr std::chrono::nanoseconds kLongestIdleLook = std::chrono::hours(1);
// Nothing sleeps while a stream is being captured; the thread looks again after so long.
inline constexpr std::chrono::nanoseconds kIdleRetry = std::chrono::milliseconds(100);

}  // namespace uvm::policy
