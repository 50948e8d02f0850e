// The commands of programs with options, as CLI11 reads them. A wrong command throws
// std::invalid_argument, which names the option and what is accepted.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace uvm {

// Sets the variables of the app's options. Returns false, after printing the help, if the command
// requests help.
inline bool read_command(CLI::App* app, int count, char** words) {
  try {
    app->parse(count, words);
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app->help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
}

// Adds an option of a `kind`, such as SIZE. `read(name, text)` returns its value, or throws.
template <class Value, class Read>
CLI::Option* add_option(CLI::App* app, const std::string& name, Value* value, Read read,
                        const char* kind, const std::string& help) {
  const auto set = [=](const std::string& text) { *value = read(name, text); };
  return app->add_option_function<std::string>(name, set, help)->type_name(kind);
}

// Returns the value of an option that takes a whole number from 1.
template <class Number>
Number whole_number(std::string_view option, std::string_view text) {
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec == std::errc() && read.ptr == text.data() + text.size() && number != 0) return number;
  throw std::invalid_argument(
      fmt::format("{} is '{}'; accepted: a whole number from 1", option, text));
}

}  // namespace uvm
