#include "pipelines/packing/pack_instance.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

namespace uvm {
namespace {

constexpr std::array<std::string_view, 4> kColumns{"id", "lower", "upper", "size"};

std::vector<std::string> values_of(std::string line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  std::vector<std::string> values(1);
  for (const char character : line) {
    if (character == ',') {
      values.emplace_back();
    } else {
      values.back() += character;
    }
  }
  return values;
}

std::int64_t number_of(const std::string& text, std::size_t line) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return value;
  throw std::invalid_argument(fmt::format("line {}: '{}' is no whole number", line, text));
}

}  // namespace

PackInstance read_pack_instance(std::istream& text) {
  std::string line;
  std::getline(text, line);
  const std::vector<std::string> header = values_of(line);
  std::array<std::size_t, kColumns.size()> column{};
  for (std::size_t place = 0; place < kColumns.size(); ++place) {
    const auto found = std::find(header.begin(), header.end(), kColumns[place]);
    if (found == header.end() || header.size() != kColumns.size()) {
      throw std::invalid_argument(
          fmt::format("line 1: the columns are '{}'; accepted: id, lower, upper, size", line));
    }
    column[place] = static_cast<std::size_t>(found - header.begin());
  }
  PackInstance instance;
  std::set<std::string> ids;
  for (std::size_t number = 2; std::getline(text, line); ++number) {
    if (line.empty()) continue;
    const std::vector<std::string> values = values_of(line);
    if (values.size() != kColumns.size()) {
      throw std::invalid_argument(fmt::format("line {} has {} values; accepted: {}", number,
                                              values.size(), kColumns.size()));
    }
    if (!ids.insert(values[column[0]]).second) {
      throw std::invalid_argument(
          fmt::format("line {}: the id '{}' is there twice", number, values[column[0]]));
    }
    instance.ids.push_back(values[column[0]]);
    instance.buffers.push_back({number_of(values[column[1]], number),
                                number_of(values[column[2]], number),
                                number_of(values[column[3]], number)});
  }
  return instance;
}

}  // namespace uvm
