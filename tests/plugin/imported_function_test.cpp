#include <uvmalloc/pytorch/loader/imported_function.hpp>

#include <gtest/gtest.h>

extern "C" __attribute__((visibility("default"))) int uvmalloc_test_answer();
extern "C" int uvmalloc_test_answer() {
  return 1;
}
extern "C" int uvmalloc_test_ask();

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

TEST(ImportedFunction, WhatIsNotThereIsNotReplaced) {
  void* other = reinterpret_cast<void*>(&other_answer);
  EXPECT_FALSE(replace_imported_function("libnowhere.so", "uvmalloc_test_answer", other));
  EXPECT_FALSE(replace_imported_function("libuvmalloc_test_caller.so", "nobody_calls_this", other));
}

}  // namespace
}  // namespace uvm
