// Who holds what, for somebody whose memory has run out.
#pragma once

#include <string>

#include <uvmalloc/allocator/statistics.hpp>

namespace uvm {

// Lines, each ended: of each facade and device, in blocks with callers, in blocks behind fences and
// in pools; of private pools and streams of devices those that hold most; and what all of it is of
// the budget.
std::string holders_table(const Statistics& statistics);

}  // namespace uvm
