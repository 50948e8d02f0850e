// Random sequences of calls against the model (support/allocator_model.hpp). Live blocks never
// overlap and keep their bytes, and no freed memory is reused before its streams are done. Every
// figure equals the model's, and all memory comes back. Invariants are checked after every call.
#include "tests/support/call_sequence.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/sanitized.hpp"

namespace uvm {
namespace {

class AllocatorPropertyTest : public ::testing::TestWithParam<unsigned> {};

TEST_P(AllocatorPropertyTest, ASequenceOfCallsDoesWhatTheModelSays) {
  std::mt19937 random(GetParam());
  std::vector<std::uint8_t> bytes(testing::steps(6000, 2000));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  EXPECT_EQ(testing::run_call_sequence(bytes), "");
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllocatorPropertyTest, ::testing::Range(0u, 24u));

}  // namespace
}  // namespace uvm
