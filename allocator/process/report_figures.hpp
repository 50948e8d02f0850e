// The sections of a report that come from figures, those of this process or of a file that a
// process has left (figure_store.hpp).
#pragma once

#include <uvmalloc/statistics.hpp>
#include "allocator/counters/figure_store.hpp"
#include "allocator/process/json_text.hpp"

namespace uvm {

void add_figures(const Figures& figures, JsonText* out);

// Returns the sum of the copies by all reasons.
MoveStatistics::Copies all_copies(const MoveStatistics& moves);

}  // namespace uvm
