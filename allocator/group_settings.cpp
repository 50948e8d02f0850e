#include "allocator/group_settings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <uvmalloc/configuration.hpp>
#include "allocator/base/number_text.hpp"
#include "allocator/base/text_parts.hpp"
#include "storage/pages.hpp"

namespace uvm {
namespace {

template <class Value>
bool store(const std::optional<Value>& read, Value* out) {
  if (read) *out = *read;
  return read.has_value();
}

template <class Value, std::size_t kCount>
bool read_word(std::string_view text, const std::pair<std::string_view, Value> (&words)[kCount],
               Value* out) {
  const auto* found = std::ranges::find(words, text, [](const auto& each) { return each.first; });
  if (found == std::end(words)) return false;
  *out = found->second;
  return true;
}

bool read_setting(std::string_view key, std::string_view value, GroupSettings* out) {
  if (key == "priority") return store(read_number<int>(value), &out->priority);
  if (key == "floor") return store(parse_size(value), &out->floor_bytes);
  if (key == "idle") return store(parse_time(value), &out->idle);
  if (key == "limit")
    return store(parse_size(value), &out->limit_bytes) && out->limit_bytes >= kPageBytes;
  if (key == "file") {
    out->file = value;
    return !value.empty();
  }
  if (key == "pinned") return read_word<bool>(value, {{"1", true}, {"0", false}}, &out->pinned);
  return key == "copies" && read_word<GroupCopies>(value,
                                                   {{"auto", GroupCopies::kAuto},
                                                    {"kept", GroupCopies::kKept},
                                                    {"none", GroupCopies::kNone}},
                                                   &out->copies);
}

}  // namespace

bool is_group_name(std::string_view name) {
  const auto is_allowed = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
           (each >= '0' && each <= '9') ||
           std::string_view("_-./:").find(each) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, is_allowed);
}

std::optional<std::vector<NamedGroupSettings>> parse_groups(std::string_view text) {
  std::vector<NamedGroupSettings> groups;
  if (text.empty()) return groups;
  const bool is_read = each_part(text, ';', [&](std::string_view entry) {
    const std::size_t colon = entry.substr(0, entry.find('=')).rfind(':');
    if (colon == std::string_view::npos) return false;
    NamedGroupSettings group{std::string(entry.substr(0, colon)), {}};
    if (!is_group_name(group.name) ||
        std::ranges::count(groups, group.name, &NamedGroupSettings::name) != 0)
      return false;
    std::vector<std::string_view> keys;
    const bool are_settings = each_part(entry.substr(colon + 1), ',', [&](std::string_view part) {
      const std::size_t equals = part.find('=');
      if (equals == std::string_view::npos) return false;
      const std::string_view key = part.substr(0, equals);
      if (std::ranges::count(keys, key) != 0) return false;
      keys.push_back(key);
      return read_setting(key, part.substr(equals + 1), &group.settings);
    });
    if (are_settings) groups.push_back(std::move(group));
    return are_settings;
  });
  if (!is_read) return std::nullopt;
  return groups;
}

bool names_group(std::string_view text, std::string_view name) {
  const auto groups = parse_groups(text);
  return groups && std::ranges::count(*groups, name, &NamedGroupSettings::name) != 0;
}

std::optional<std::chrono::nanoseconds> parse_time(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 4> kUnits{
      {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}};
  double scale = 1;
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    scale = seconds;
    break;
  }
  const auto number = read_number<double>(text);
  if (!number || !std::isfinite(*number) || *number < 0) return std::nullopt;
  const double seconds = *number * scale;
  if (seconds > kMostIdleSeconds) return std::nullopt;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace uvm
