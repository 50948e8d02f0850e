// How much host memory the kernel and the control groups still allow this process.
#pragma once

#include <cstddef>
#include <string>

namespace uvm {

// MemAvailable, capped by the headroom of every control group (version 1 or 2) above this process.
// A group's inactive page cache does not count as used. Files are read below `root`, which only
// tests set. Without MemAvailable, sysinfo(2) is used, which counts all page cache as used.
std::size_t available_host_bytes(const std::string& root = "/");

}  // namespace uvm
