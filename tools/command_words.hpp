// Reads the words of a command one after another, for programs with options. On an error, throws
// std::invalid_argument, which names the option and the accepted values.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

namespace uvm {

class CommandWords {
 public:
  CommandWords(int count, char** words) : count_(count), words_(words) {}

  // Advances to the next word; the first call selects the word after the program's name. Returns
  // false if there is no next word.
  bool next() { return ++at_ < count_; }
  std::string_view word() const { return words_[at_]; }
  // Advances to the word after an option, and returns that word: the option's value.
  std::string_view value() {
    const std::string_view option = word();
    if (!next()) throw std::invalid_argument(fmt::format("{} lacks its value", option));
    return word();
  }

 private:
  int count_;
  char** words_;
  int at_ = 0;
};

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
