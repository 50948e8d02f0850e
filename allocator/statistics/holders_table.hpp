// The table of an out-of-memory message: who holds how much. A pure function.
#pragma once

#include <string>

#include <uvmalloc/statistics.hpp>

namespace uvm {

// Returns lines, each ended. For each memory kind and device: bytes in blocks with callers, in
// blocks behind fences and in pools. For the private pools and device streams that hold most: their
// bytes. Last the sum, compared with the budget.
std::string holders_table(const Statistics& statistics);

}  // namespace uvm
