#include "allocator/base/machine_memory.hpp"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace uvm {
namespace {

std::optional<std::size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  // "max" means no limit, and is not a number.
  if (file >> value) return value;
  return std::nullopt;
}

// Returns the number after `name` in a file of lines "name number" or "name: number unit".
std::optional<std::size_t> named_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::size_t number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return std::nullopt;
}

HostMemoryFigures memory_of_sysinfo() {
  struct sysinfo machine = {};
  sysinfo(&machine);  // fails only for a bad address
  return {machine.totalram * machine.mem_unit,
          (machine.freeram + machine.bufferram) * machine.mem_unit};
}

// Names of a control group's files; each version of control groups has its own.
struct GroupFiles {
  const char* folder;
  const char* limit;
  const char* lower_limit;  // the kernel slows the group down above it; nullptr: there is none
  const char* use;
  const char* idle_cache;  // in memory.stat
};
constexpr GroupFiles kVersion1{"/memory", "/memory.limit_in_bytes", nullptr,
                               "/memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"", "/memory.max", "/memory.high", "/memory.current",
                               "inactive_file"};

// Lowers `*least` to the bytes that the group in `folder` may use, and may still use. The kernel
// counts page cache as used; inactive page cache is subtracted, because the kernel reclaims it
// first.
void cap(HostMemoryFigures* least, const std::string& folder, const GroupFiles& files) {
  auto limit = read_number(folder + files.limit);
  if (files.lower_limit != nullptr) {
    const auto lower = read_number(folder + files.lower_limit);
    if (lower) limit = std::min(*lower, limit.value_or(*lower));
  }
  auto use = read_number(folder + files.use);
  // Version 1 writes "no limit" as a number near the largest one.
  if (!limit || !use || *limit > (std::numeric_limits<std::size_t>::max() >> 2)) return;
  *use -= std::min(*use, named_number(folder + "/memory.stat", files.idle_cache).value_or(0));
  least->total_bytes = std::min(least->total_bytes, *limit);
  least->available_bytes = std::min(least->available_bytes, *limit > *use ? *limit - *use : 0);
}

}  // namespace

HostMemoryFigures host_memory_figures(const std::string& root) {
  HostMemoryFigures memory = memory_of_sysinfo();
  const auto available_kib = named_number(root + "proc/meminfo", "MemAvailable:");
  if (available_kib) memory.available_bytes = *available_kib << 10;
  const auto total_kib = named_number(root + "proc/meminfo", "MemTotal:");
  if (total_kib) memory.total_bytes = *total_kib << 10;
  std::ifstream groups(root + "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" in version 2, "N:memory:/path" in version 1.
    std::size_t first = line.find(':');
    std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    bool version2 = controllers.empty();
    if (!version2 && controllers != "memory") continue;
    const GroupFiles& files = version2 ? kVersion2 : kVersion1;
    for (;;) {
      cap(&memory, root + "sys/fs/cgroup" + files.folder + path, files);
      std::size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return memory;
}

std::chrono::microseconds memory_stall(const std::string& root) {
  // "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", in microseconds.
  std::ifstream file(root + "proc/pressure/memory");
  for (std::string line; std::getline(file, line);) {
    const std::size_t total = line.find("total=");
    if (!line.starts_with("some") || total == std::string::npos) continue;
    std::int64_t microseconds = 0;
    if (std::istringstream(line.substr(total + 6)) >> microseconds)
      return std::chrono::microseconds(microseconds);
  }
  return {};
}

}  // namespace uvm
