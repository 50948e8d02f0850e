// Computes how much host memory the kernel and the control groups still allow this process, and
// whether programs wait for memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace uvm {

struct HostMemoryFigures {
  std::size_t total_bytes = 0;
  std::size_t available_bytes = 0;
};

// Returns MemTotal and MemAvailable of /proc/meminfo, or the least headroom of the control groups
// (version 1 or 2) above this process if that is less. In version 2 a group's headroom ends at
// memory.high, where the kernel slows it down. A group's inactive page cache does not count as
// used. Without MemAvailable, sysinfo(2) is used, which counts all page cache as used. All files
// are read below `root`, which only tests set.
HostMemoryFigures host_memory_figures(const std::string& root = "/");
inline std::size_t available_host_bytes(const std::string& root = "/") {
  return host_memory_figures(root).available_bytes;
}

// Returns for how long, since the machine started, some program has waited for memory (pressure
// stall information); 0 if the kernel does not say.
std::chrono::microseconds memory_stall(const std::string& root = "/");

}  // namespace uvm
