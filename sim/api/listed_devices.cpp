#include "sim/api/listed_devices.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace uvmsim::api {
namespace {

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const std::size_t first = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

}  // namespace

std::vector<int> parse_visible_devices(std::string_view list, int device_count) {
  std::vector<int> devices;
  while (!list.empty()) {
    const std::size_t length = std::min(list.find(','), list.size());
    const std::string_view entry = without_blanks(list.substr(0, length));
    list.remove_prefix(std::min(list.size(), length + 1));
    int device = -1;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), device);
    const bool is_number = error == std::errc{} && end == entry.data() + entry.size();
    if (!is_number || device < 0 || device >= device_count) break;
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) break;
    devices.push_back(device);
  }
  return devices;
}

std::vector<int> listed_devices(const char* list, int device_count) {
  if (list != nullptr) return parse_visible_devices(list, device_count);
  std::vector<int> all(static_cast<std::size_t>(device_count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace uvmsim::api
