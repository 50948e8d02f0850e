#include "tools/oversubscription/two_programs.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "hints/sharing/turns.hpp"
#include "sim/engine/units.hpp"

#include "tests/tools/made_recording.hpp"

namespace uvm::oversubscription {
namespace {

using testing::copying_machine;
using testing::kCopyNs;
using uvmsim::kBlockBytes;
using uvmsim::replay::Recording;

constexpr std::uint64_t kKernelNs = 10'000'000;

// One step: a kernel for each block, all of the same length.
Recording program(std::uint32_t blocks) {
  testing::MadeRecording made(blocks);
  for (std::uint32_t block = 0; block < blocks; ++block) made.add_kernel({block}, kKernelNs);
  made.add_mark("end");
  return made.recording;
}

TEST(TwoProgramsTest, EachTurnBringsAndTakesAwayTheMemoryOfOneProgram) {
  const TwoPrograms found =
      two_programs(program(3), program(2), copying_machine(), 4 * kBlockBytes);
  ASSERT_EQ(found.failure, "");
  const std::uint64_t turn_ns = sharing::TurnRules::for_device(4 * kBlockBytes).turn_ns;
  EXPECT_EQ(found.steps[0], (turn_ns + 3 * kKernelNs - 1) / (3 * kKernelNs));
  EXPECT_EQ(found.steps[1], (turn_ns + 2 * kKernelNs - 1) / (2 * kKernelNs));
  EXPECT_EQ(found.alone_ns, (3 * found.steps[0] + 2 * found.steps[1]) * kKernelNs);
  EXPECT_EQ(found.moved_bytes, 2 * 5 * kBlockBytes);
  // The host waits while all blocks leave. Of the blocks that arrive, only the first arrives
  // without a kernel beside it.
  EXPECT_EQ(found.turns_ns, found.alone_ns + (5 + 2) * kCopyNs);
  EXPECT_GT(found.driver_ns, found.turns_ns);
}

TEST(TwoProgramsTest, OneThatDoesNotFitAloneIsMovedByTheDriverWithinItsTurn) {
  const TwoPrograms found =
      two_programs(program(6), program(2), copying_machine(), 4 * kBlockBytes);
  ASSERT_EQ(found.failure, "");
  EXPECT_GT(found.moved_bytes, 2 * 8 * kBlockBytes);
}

}  // namespace
}  // namespace uvm::oversubscription
