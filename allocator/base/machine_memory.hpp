// Computes how much host memory the kernel and the control groups still allow this process.
#pragma once

#include <cstddef>
#include <string>

namespace uvm {

// Returns MemAvailable of /proc/meminfo, or the least headroom of the control groups (version 1 or
// 2) above this process if that is less. A group's inactive page cache does not count as used.
// Without MemAvailable, sysinfo(2) is used, which counts all page cache as used. All files are read
// below `root`, which only tests set.
std::size_t available_host_bytes(const std::string& root = "/");

}  // namespace uvm
