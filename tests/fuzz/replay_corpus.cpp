// replay_corpus ARCHIVE EVERY: runs the call sequences of an archive from scripts/fuzz_corpus.py,
// and names each sequence after which allocator and model differ. EVERY is 1 for all sequences, 16
// for every sixteenth.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/call_sequence.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kLengthBytes = 4;

// Reads the sequence at `at` and moves `at` behind it. Returns false if the archive ends too soon.
bool read_sequence(const Bytes& archive, std::size_t& at, Bytes& sequence) {
  std::size_t length = 0;
  if (archive.size() - at < kLengthBytes) return false;
  for (std::size_t digit = 0; digit < kLengthBytes; ++digit) {
    length |= std::size_t{archive[at++]} << (8 * digit);
  }
  if (archive.size() - at < length) return false;
  const auto* const first = archive.data() + at;
  sequence.assign(first, first + length);
  at += length;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::size_t every = std::stoul(argv[2]);
  std::ifstream file(argv[1], std::ios::binary);
  const Bytes archive{std::istreambuf_iterator<char>(file), {}};
  std::size_t sequences = 0;
  std::size_t failures = 0;
  Bytes sequence;
  for (std::size_t number = 0, at = 0; at < archive.size(); ++number) {
    if (!read_sequence(archive, at, sequence)) {
      std::printf("%s: ends within sequence %zu\n", argv[1], number);
      return 1;
    }
    if (number % every != 0) continue;
    ++sequences;
    const std::string broken = uvm::testing::run_call_sequence(sequence);
    if (broken.empty()) continue;
    ++failures;
    std::printf("%s, sequence %zu: %s\n", argv[1], number, broken.c_str());
  }
  std::printf("%zu sequences, %zu wrong\n", sequences, failures);
  return sequences == 0 || failures != 0 ? 1 : 0;
}
