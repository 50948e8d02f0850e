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

std::size_t unused_host_bytes() {
  struct sysinfo machine = {};
  sysinfo(&machine);  // fails only for a bad address
  return (machine.freeram + machine.bufferram) * machine.mem_unit;
}

// Names of a control group's files; each version of control groups has its own.
struct GroupFiles {
  const char* folder;
  const char* limit;
  const char* use;
  const char* idle_cache;  // in memory.stat
};
constexpr GroupFiles kVersion1{"/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles kVersion2{"", "/memory.max", "/memory.current", "inactive_file"};

// Lowers `*least` to the bytes that the group in `folder` may still use. The kernel counts page
// cache as used; inactive page cache is subtracted, because the kernel reclaims it first.
void cap(std::size_t* least, const std::string& folder, const GroupFiles& files) {
  auto limit = read_number(folder + files.limit);
  auto use = read_number(folder + files.use);
  // Version 1 writes "no limit" as a number near the largest one.
  if (!limit || !use || *limit > (std::numeric_limits<std::size_t>::max() >> 2)) return;
  *use -= std::min(*use, named_number(folder + "/memory.stat", files.idle_cache).value_or(0));
  *least = std::min(*least, *limit > *use ? *limit - *use : 0);
}

}  // namespace

std::size_t available_host_bytes(const std::string& root) {
  const auto available_kib = named_number(root + "proc/meminfo", "MemAvailable:");
  std::size_t available = available_kib ? *available_kib << 10 : unused_host_bytes();
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
      cap(&available, root + "sys/fs/cgroup" + files.folder + path, files);
      std::size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return available;
}

}  // namespace uvm
