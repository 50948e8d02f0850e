// Parses numbers in strings, independently of the locale.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace uvm {

// Returns the number if the whole string is a number. `how`: the base of an integer, as in
// std::from_chars.
template <class Number, class... How>
std::optional<Number> read_number(std::string_view text, How... how) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number, how...);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return number;
}

}  // namespace uvm
