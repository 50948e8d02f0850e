// Sizes of symbols in shared objects that are not loaded.
#include "pytorch/interpose/class_layout.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/support/temporary_folder.hpp"

// A symbol of a known size in this program.
extern "C" {
extern char uvmalloc_test_symbol[1234];
char uvmalloc_test_symbol[1234] = {1};
}

namespace uvm::interpose {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

std::string this_program() {
  std::ifstream file(kThisProgram, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t bytes_in(const std::string& contents) {
  static const testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/object";
  std::ofstream(file, std::ios::binary) << contents;
  return symbol_bytes(file, "uvmalloc_test_symbol");
}

TEST(ClassLayout, TheSizeOfASymbolIsRead) {
  EXPECT_EQ(symbol_bytes(kThisProgram, "uvmalloc_test_symbol"), 1234u);
  EXPECT_EQ(symbol_bytes(kThisProgram, "uvmalloc_test_symbo"), 0u);
  EXPECT_EQ(symbol_bytes("/nowhere", "uvmalloc_test_symbol"), 0u);
}

TEST(ClassLayout, DamagedFilesHaveNoSymbols) {
  const std::string whole = this_program();
  ASSERT_EQ(bytes_in(whole), 1234u);
  EXPECT_EQ(bytes_in(""), 0u);
  EXPECT_EQ(bytes_in("text"), 0u);
  for (const std::size_t cut : {std::size_t{4}, std::size_t{63}, whole.size() / 2}) {
    EXPECT_EQ(bytes_in(whole.substr(0, cut)), 0u) << cut;
  }
  // Offsets and sizes beyond the file, in the header.
  for (std::size_t at = 16; at < 64; ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(0xff);
    (void)bytes_in(damaged);  // no crash; some of these bytes do not matter
  }
}

TEST(ClassLayout, ATorchWithoutSymbolsIsTrustedOnlyIfItIsARelease) {
  for (const char* version : {"2.11.0", "2.11.0+cu130", "2.15.1+cpu"})
    EXPECT_EQ(why_classes_differ("/nowhere", "/nowhere", version), "") << version;
  for (const char* version :
       {"2.13.0a0+git1234", "2.13.0.dev20260901", "2.13.0rc1", "2.11.0a0+1.nv26.1", ""}) {
    EXPECT_NE(why_classes_differ("/nowhere", "/nowhere", version).find("is not a release"),
              std::string::npos)
        << version;
  }
}

}  // namespace
}  // namespace uvm::interpose
