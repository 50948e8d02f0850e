// Runs every file of the folders and files it is given, in the order of their names, and says which
// sequences of calls end otherwise than the model says.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "support/call_sequence.hpp"

namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& argument) {
  if (!std::filesystem::is_directory(argument)) return {argument};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argument)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  std::string broken = uvm::testing::run_call_sequence(bytes);
  if (!broken.empty()) std::printf("%s: %s\n", path.filename().c_str(), broken.c_str());
  return broken.empty();
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t files = 0;
  std::size_t failures = 0;
  for (int argument = 1; argument < argc; ++argument) {
    for (const std::filesystem::path& path : files_of(argv[argument])) {
      ++files;
      failures += !replay(path);
    }
  }
  std::printf("%zu sequences, %zu wrong\n", files, failures);
  return files == 0 || failures != 0 ? 1 : 0;
}
