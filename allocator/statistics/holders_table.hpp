// The table in an out-of-memory message: who holds how many bytes. A pure function.
#pragma once

#include <string>

#include <uvmalloc/statistics.hpp>

namespace uvm {

// Returns lines, each ended by a newline. For each memory kind and device: the bytes in live
// blocks, in blocks behind fences and in pools. For the private pools and device streams that hold
// the most memory: their bytes. The last line compares the sum with the budget.
std::string holders_table(const Statistics& statistics);

}  // namespace uvm
