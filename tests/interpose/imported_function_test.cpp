#include "pytorch/interpose/imported_function.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

extern "C" __attribute__((visibility("default"))) int uvmalloc_test_answer();
extern "C" int uvmalloc_test_answer() {
  return 1;
}
extern "C" __attribute__((visibility("default"))) int uvmalloc_test_listed();
extern "C" int uvmalloc_test_listed() {
  return 2;
}
extern "C" int uvmalloc_test_ask();
extern "C" int uvmalloc_test_ask_table();

namespace uvm {
namespace {

int other_answer() {
  return uvmalloc_test_answer() + 41;
}

TEST(ImportedFunction, ALibraryCallsTheReplacementAndEverybodyElseTheOriginal) {
  ASSERT_EQ(uvmalloc_test_ask(), 1);
  EXPECT_TRUE(replace_imported_function("libuvmalloc_test_caller.so", "uvmalloc_test_answer",
                                        reinterpret_cast<void*>(&other_answer)));
  EXPECT_EQ(uvmalloc_test_ask(), 42);
  EXPECT_EQ(uvmalloc_test_answer(), 1);
}

// Returns the protections of a library's mappings, such as "rw-p".
std::vector<std::string> protections_of(const std::string& library) {
  std::vector<std::string> out;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(library)) out.push_back(line.substr(line.find(' ') + 1, 4));
  }
  return out;
}

TEST(ImportedFunction, PagesThatWereReadOnlyAreReadOnlyAgain) {
  const std::vector<std::string> before = protections_of("libuvmalloc_test_caller.so");
  ASSERT_EQ(std::count(before.begin(), before.end(), "rw-p"), 1) << "linked with -z now";
  ASSERT_TRUE(replace_imported_function("libuvmalloc_test_caller.so", "uvmalloc_test_answer",
                                        reinterpret_cast<void*>(&other_answer)));
  EXPECT_EQ(uvmalloc_test_ask(), 42);
  EXPECT_EQ(protections_of("libuvmalloc_test_caller.so"), before);
}

TEST(ImportedFunction, WithoutALibraryAllOfThemCallTheReplacementsAlsoThroughTables) {
  auto* other = reinterpret_cast<void*>(&other_answer);
  ImportedFunction functions[] = {{"uvmalloc_test_answer", other},
                                  {"uvmalloc_test_listed", other},
                                  {"nobody_calls_this", other}};
  for (int round = 0; round < 2; ++round) {
    replace_imported_functions(nullptr, functions);
    EXPECT_TRUE(functions[0].replaced);
    EXPECT_TRUE(functions[1].replaced);
    EXPECT_FALSE(functions[2].replaced);
    EXPECT_EQ(uvmalloc_test_ask(), 42);
    EXPECT_EQ(uvmalloc_test_ask_table(), 42);
  }
}

TEST(ImportedFunction, WhatIsNotThereIsNotReplaced) {
  void* other = reinterpret_cast<void*>(&other_answer);
  EXPECT_FALSE(replace_imported_function("libnowhere.so", "uvmalloc_test_answer", other));
  EXPECT_FALSE(replace_imported_function("libuvmalloc_test_caller.so", "nobody_calls_this", other));
}

}  // namespace
}  // namespace uvm
