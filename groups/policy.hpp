// The numbers by which groups decide, with their reasons and the benchmark keys that judge them.
#pragma once

#include <cstddef>

namespace uvm::policy {

// If more than 1/kWrittenParts of the pages were written to since a group woke, the host keeps no
// copies next time: each written page costs a page fault (second_sleep_bytes, swap_over_to).
inline constexpr std::size_t kWrittenParts = 16;

// Pages that wake by one step if they get advice: the driver takes some microseconds to advise one,
// a tenth of the time of its copy (wake_over_link).
inline constexpr std::size_t kAdvisedPages = 64;

}  // namespace uvm::policy
