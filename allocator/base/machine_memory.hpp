// How much host memory this process may still take, by the kernel and by its control group.
#pragma once

#include <cstddef>
#include <string>

namespace uvm {

// MemAvailable, capped by the headroom of every control group (version 1 or 2) above this process.
// Idle page cache of a group does not count as its use. Files are read below `root`, "/" outside of
// tests. If no file has MemAvailable, the kernel's sysinfo(2) answers: it needs no file, but
// counts all page cache as used.
std::size_t available_host_bytes(const std::string& root = "/");

}  // namespace uvm
