#include "request.hpp"

#include <charconv>
#include <sstream>
#include <stdexcept>

namespace uvm::bench {

Request::Request(const std::string& line) {
  std::istringstream words(line);
  words >> workload_;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) throw std::invalid_argument("'" + word + "' is no KEY=VALUE");
    parameters_[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

std::uint64_t Request::number(const std::string& key) const {
  const auto found = parameters_.find(key);
  if (found == parameters_.end()) throw std::invalid_argument(workload_ + " needs " + key);
  const std::string& text = found->second;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument(key + " is '" + text + "'; accepted: a whole number");
  }
  return value;
}

std::uint64_t Request::number(const std::string& key, std::uint64_t otherwise) const {
  return parameters_.contains(key) ? number(key) : otherwise;
}

std::string Request::text(const std::string& key, const std::string& otherwise) const {
  const auto found = parameters_.find(key);
  return found == parameters_.end() ? otherwise : found->second;
}

Request Request::with(const std::string& key, std::uint64_t value) const {
  Request result = *this;
  result.parameters_[key] = std::to_string(value);
  return result;
}

}  // namespace uvm::bench
