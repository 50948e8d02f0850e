// replay_corpus FILE EVERY: runs the sequences of calls of a file, each a line of hexadecimal
// digits, and says which end otherwise than the model says. EVERY is 1 for all lines, 4 for every
// fourth line.
#include <cctype>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/call_sequence.hpp"

namespace {

// nullopt: other characters than pairs of hexadecimal digits.
std::optional<std::vector<std::uint8_t>> bytes_of(const std::string& line) {
  std::vector<std::uint8_t> bytes;
  if (line.size() % 2 != 0) return std::nullopt;
  for (std::size_t at = 0; at < line.size(); at += 2) {
    const std::string digits = line.substr(at, 2);
    for (const char digit : digits) {
      if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) return std::nullopt;
    }
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(digits, nullptr, 16)));
  }
  return bytes;
}

// What is wrong with one line; empty: nothing.
std::string replay(const std::string& line) {
  const auto bytes = bytes_of(line);
  return bytes ? uvm::testing::run_call_sequence(*bytes) : "not pairs of hexadecimal digits";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::size_t every = std::stoul(argv[2]);
  std::size_t sequences = 0;
  std::size_t failures = 0;
  std::ifstream file(argv[1]);
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    if (number++ % every != 0) continue;
    ++sequences;
    const std::string broken = replay(line);
    if (broken.empty()) continue;
    ++failures;
    std::printf("%s:%zu: %s\n", argv[1], number, broken.c_str());
  }
  std::printf("%zu sequences, %zu wrong\n", sequences, failures);
  return sequences == 0 || failures != 0 ? 1 : 0;
}
