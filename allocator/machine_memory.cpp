#include <uvmalloc/allocator/machine_memory.hpp>

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
  // "max" is no number: no limit.
  if (file >> value) return value;
  return std::nullopt;
}

// Lowers `*least` to what a group with this limit and use still allows. Page cache counts as use
// here; the kernel would reclaim some of it, so the figure errs to the safe side.
void cap(std::size_t* least, const std::string& limit_path, const std::string& use_path) {
  auto limit = read_number(limit_path);
  auto use = read_number(use_path);
  // Version 1 writes "no limit" as a number near the largest one.
  if (!limit || !use || *limit > (std::numeric_limits<std::size_t>::max() >> 2)) return;
  *least = std::min(*least, *limit > *use ? *limit - *use : 0);
}

}  // namespace

std::size_t available_host_bytes(const std::string& root) {
  std::size_t available = 0;
  std::ifstream meminfo(root + "proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") available = kib << 10;
  }
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
    for (;;) {
      std::string folder = root + "sys/fs/cgroup" + (version2 ? "" : "/memory") + path;
      if (version2) {
        cap(&available, folder + "/memory.max", folder + "/memory.current");
      } else {
        cap(&available, folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes");
      }
      std::size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return available;
}

}  // namespace uvm
