// Reads the words of a command one after another, for programs with options. Errors are
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

  // Advances to the next word, at first the one after the program's name. Returns false if there is
  // none.
  bool next() { return ++at_ < count_; }
  std::string_view word() const { return words_[at_]; }
  // Returns the word after an option, which is its value.
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

// The value of an option that takes a whole number.
template <class Number>
Number whole_number(std::string_view option, std::string_view text) {
  Number number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec == std::errc() && read.ptr == text.data() + text.size() && number != 0) return number;
  throw std::invalid_argument(
      fmt::format("{} is '{}'; accepted: a whole number from 1", option, text));
}

}  // namespace uvm
