// How much host memory this process may still take: what the kernel would give and what its control
// group allows.
#pragma once

#include <cstddef>
#include <string>

namespace uvm {

// MemAvailable, capped by the headroom of every control group (version 1 or 2) above this process;
// page cache of a group that is idle does not count as its use. Files are read below `root`, "/"
// outside of tests. 0 where nothing can be read.
std::size_t available_host_bytes(const std::string& root = "/");

}  // namespace uvm
