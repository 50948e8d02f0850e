// Rules for the movement of managed pages.
#include "machine_test.hpp"

namespace uvmsim::test {
namespace {

using ResidencyTest = MachineTest;

TEST_F(ResidencyTest, FreshMemoryIsNowhere) {
  const std::byte* memory = managed(4 * kMiB);
  EXPECT_EQ(resident(memory, 4 * kMiB, 0), 0U);
  EXPECT_EQ(resident(memory, 4 * kMiB, UVMSIM_HOST), 0U);
  EXPECT_EQ(managed_use(0), 0U);
}

TEST_F(ResidencyTest, OneTouchedPageChargesAWholeChunk) {
  const std::byte* memory = managed(4 * kMiB);
  ASSERT_EQ(touch(0, memory + kMiB, 1, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(resident(memory, 4 * kMiB, 0), kPage);
  EXPECT_EQ(managed_use(0), kBlock);
  EXPECT_EQ(counters().fault_pages_device, 1U);
  EXPECT_EQ(counters().populated_bytes_device, kPage);
  EXPECT_EQ(counters().migrated_bytes_to_device, 0U);
}

TEST_F(ResidencyTest, ResidencyCountsPagesClippedToTheRange) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(touch(0, memory, 2 * kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(resident(memory + 100, kPage, 0), kPage);
  EXPECT_EQ(resident(memory + kPage + 100, kPage, 0), kPage - 100);
  EXPECT_EQ(resident(memory + 10, 20, 0), 20U);
  EXPECT_EQ(resident(memory + 2 * kPage, 1, 0), 0U);
}

TEST_F(ResidencyTest, ResidencyOfWhatIsNotManagedIsInvalid) {
  const std::byte* memory = managed(kBlock);
  std::size_t bytes = 0;
  int local = 0;
  EXPECT_EQ(uvmsim_residency(&local, 1, 0, &bytes),
            machine().profile().reaches_ordinary_memory() ? UVMSIM_OK : UVMSIM_ERROR_INVALID);
  EXPECT_EQ(uvmsim_residency(memory, kBlock + 1, 0, &bytes), UVMSIM_ERROR_INVALID);
  EXPECT_EQ(uvmsim_residency(memory, kBlock, 2, &bytes), UVMSIM_ERROR_INVALID);
  EXPECT_EQ(uvmsim_residency(memory, kBlock, -2, &bytes), UVMSIM_ERROR_INVALID);
  EXPECT_EQ(uvmsim_residency(device_memory(0, kBlock), 1, 0, &bytes), UVMSIM_ERROR_INVALID);
}

TEST_F(ResidencyTest, PrefetchMovesTheWholeRangeThereAndBack) {
  const std::byte* memory = managed(3 * kMiB);
  ASSERT_EQ(prefetch(memory, 3 * kMiB, 0), Status::kOk);
  EXPECT_EQ(resident(memory, 3 * kMiB, 0), 3 * kMiB);
  EXPECT_EQ(managed_use(0), 2 * kBlock);
  EXPECT_EQ(counters().populated_bytes_device, 3 * kMiB);

  ASSERT_EQ(prefetch(memory, 3 * kMiB, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(resident(memory, 3 * kMiB, 0), 0U);
  EXPECT_EQ(resident(memory, 3 * kMiB, UVMSIM_HOST), 3 * kMiB);
  EXPECT_EQ(counters().migrated_bytes_to_host, 3 * kMiB);

  ASSERT_EQ(prefetch(memory, 3 * kMiB, 1), Status::kOk);
  EXPECT_EQ(resident(memory, 3 * kMiB, 1), 3 * kMiB);
  EXPECT_EQ(counters().migrated_bytes_to_device, 3 * kMiB);

  ASSERT_EQ(prefetch(memory, kMiB, 0), Status::kOk);
  EXPECT_EQ(counters().migrated_bytes_between_devices, kMiB);
  EXPECT_EQ(resident(memory, 3 * kMiB, 1), 2 * kMiB);
}

TEST_F(ResidencyTest, ARepeatedPrefetchMovesNothing) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  const uvmsim_counters before = counters();
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  EXPECT_EQ(counters().populated_bytes_device, before.populated_bytes_device);
  EXPECT_EQ(counters().migrated_bytes_to_device, 0U);
  EXPECT_EQ(counters().prefetch_calls, 2U);
}

TEST_F(ResidencyTest, AKernelMigratesWhatTheHostHolds) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(touch(0, memory, 3 * kPage, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(resident(memory, kBlock, 0), 3 * kPage);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kBlock - 3 * kPage);
  EXPECT_EQ(counters().migrated_bytes_to_device, 3 * kPage);
}

TEST_F(ResidencyTest, AccessedByLeavesPagesWhereTheyAre) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetAccessedBy, 0), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(touch(0, memory, 2 * kPage, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kBlock);
  EXPECT_EQ(counters().remote_access_bytes, 2 * kPage);
  EXPECT_EQ(counters().fault_pages_device, 0U);
  EXPECT_EQ(counters().migrated_bytes_to_device, 0U);
}

TEST_F(ResidencyTest, PreferredHostIsPopulatedAndUsedThere) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetPreferredLocation, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(touch(0, memory, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kPage);
  EXPECT_EQ(managed_use(0), 0U);
  EXPECT_EQ(counters().fault_pages_device, 1U);
  ASSERT_EQ(touch(0, memory, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(counters().fault_pages_device, 1U) << "mapped by the first touch";
  EXPECT_EQ(counters().remote_access_bytes, 2 * kPage);
}

TEST_F(ResidencyTest, PreferredHereWinsOverAccessedByHere) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetPreferredLocation, 0), Status::kOk);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetAccessedBy, 0), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(touch(0, memory, kPage, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(resident(memory, kBlock, 0), kPage);
}

TEST_F(ResidencyTest, PreferredOnAnUnreachablePeerFallsBackToTheFaultingDevice) {
  const std::byte* memory = managed(2 * kBlock);
  ASSERT_EQ(advise(memory, 2 * kBlock, Advice::kSetPreferredLocation, 1), Status::kOk);
  ASSERT_EQ(touch(0, memory, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(resident(memory, 2 * kBlock, 0), kPage);
  ASSERT_EQ(machine().memory().enable_peer_access(0, 1), Status::kOk);
  ASSERT_EQ(touch(0, memory + kBlock, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(resident(memory, 2 * kBlock, 1), kPage);
  EXPECT_EQ(counters().remote_access_bytes, kPage);
}

TEST_F(ResidencyTest, ReadMostlyDuplicatesOnReadAndCollapsesOnWrite) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetReadMostly, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(touch(0, memory, 4 * kPage, UVMSIM_READ), UVMSIM_OK);
  ASSERT_EQ(prefetch(memory, 2 * kPage, 1), Status::kOk);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kBlock);
  EXPECT_EQ(resident(memory, kBlock, 0), 4 * kPage);
  EXPECT_EQ(resident(memory, kBlock, 1), 2 * kPage);
  ASSERT_EQ(touch(0, memory, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kBlock - kPage);
  EXPECT_EQ(resident(memory, kBlock, 0), 4 * kPage);
  EXPECT_EQ(resident(memory, kBlock, 1), kPage);
}

TEST_F(ResidencyTest, UnsetReadMostlyKeepsOneCopy) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetReadMostly, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(advise(memory, kBlock, Advice::kUnsetReadMostly, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST) + resident(memory, kBlock, 0), kBlock);
}

TEST_F(ResidencyTest, UnsetReadMostlyKeepsTheCopyAtThePreferredLocation) {
  const std::byte* memory = managed(kBlock);
  const std::size_t half = kBlock / 2;
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetReadMostly, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(advise(memory, half, Advice::kSetPreferredLocation, 0), Status::kOk);
  ASSERT_EQ(advise(memory + half, half, Advice::kSetPreferredLocation, 1), Status::kOk);
  for (const int location : {UVMSIM_HOST, 0, 1})
    ASSERT_EQ(prefetch(memory, kBlock, location), Status::kOk);
  ASSERT_EQ(advise(memory, kBlock, Advice::kUnsetReadMostly, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), 0U);
  EXPECT_EQ(resident(memory, half, 0), half);
  EXPECT_EQ(resident(memory + half, half, 1), half);
  EXPECT_EQ(resident(memory, kBlock, 0) + resident(memory, kBlock, 1), kBlock);
}

TEST_F(ResidencyTest, AdviceOnAPartAppliesToThatPartOnly) {
  const std::byte* memory = managed(4 * kBlock);
  ASSERT_EQ(advise(memory + kBlock, kBlock, Advice::kSetPreferredLocation, 1), Status::kOk);
  ASSERT_EQ(advise(memory + kBlock, 2 * kBlock, Advice::kSetAccessedBy, UVMSIM_HOST), Status::kOk);
  struct {
    std::size_t block;
    int preferred;
    std::uint64_t accessed_by;
  } const expected[] = {
      {0, -2, 0}, {1, 1, Policy::kHostBit}, {2, -2, Policy::kHostBit}, {3, -2, 0}};
  for (const auto& want : expected) {
    int preferred = 0;
    std::uint64_t accessed_by = 1;
    int read_mostly = 1;
    ASSERT_EQ(uvmsim_advice(memory + want.block * kBlock, &preferred, &accessed_by, &read_mostly),
              UVMSIM_OK);
    EXPECT_EQ(preferred, want.preferred) << want.block;
    EXPECT_EQ(accessed_by, want.accessed_by) << want.block;
    EXPECT_EQ(read_mostly, 0) << want.block;
  }
  EXPECT_EQ(counters().advice_calls, 2U);
}

TEST_F(ResidencyTest, DiscardedPagesMoveWithoutACopyUntilWritten) {
  const std::byte* memory = managed(2 * kBlock);
  ASSERT_EQ(prefetch(memory, 2 * kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory, 2 * kBlock}), Status::kOk);
  EXPECT_EQ(resident(memory, 2 * kBlock, 0), 2 * kBlock)
      << "contents are undefined, the memory stays";
  ASSERT_EQ(touch(0, memory + kBlock, kBlock, UVMSIM_WRITE), UVMSIM_OK);
  ASSERT_EQ(prefetch(memory, 2 * kBlock, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(counters().migrated_bytes_to_host, kBlock) << "only the block that was written again";
}

TEST_F(ResidencyTest, DiscardRoundsInwardToWholePages) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory + 1, 2 * kPage}), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory + 10 * kPage + 1, kPage}),
            Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(counters().migrated_bytes_to_host, kBlock - kPage);
}

TEST_F(ResidencyTest, APrefetchAfterADiscardMakesThePagesCountAgain) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory, kBlock}), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(counters().migrated_bytes_to_host, kBlock);
}

TEST_F(ResidencyTest, CopiesUseThePagesWhereTheyAre) {
  std::byte* memory = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kPage, UVMSIM_HOST), Status::kOk);
  std::vector<std::byte> source(3 * kPage, std::byte{42});
  const Copy copy{.to = memory,
                  .from = source.data(),
                  .width_bytes = source.size(),
                  .to_end = CopyEnd::kDeviceMemory,
                  .from_end = CopyEnd::kHostMemory};
  ASSERT_EQ(machine().work().copy(0, nullptr, copy, Wait::kYes), Status::kOk);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kPage);
  EXPECT_EQ(resident(memory, kBlock, 0), 2 * kPage) << "what was nowhere comes to be on the device";
  for (std::size_t i = 0; i < source.size(); i += kPage) EXPECT_EQ(memory[i], std::byte{42});
}

TEST_F(ResidencyTest, ACopyOfRowsLeavesThePagesBetweenThemAlone) {
  std::byte* memory = managed(kBlock);
  std::byte* source = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory, kBlock}), Status::kOk);
  const Copy copy{.to = memory,
                  .from = source,
                  .width_bytes = 4,
                  .rows = 2,
                  .to_pitch_bytes = kMiB,
                  .from_pitch_bytes = kMiB};
  ASSERT_EQ(machine().work().copy(0, nullptr, copy, Wait::kYes), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(counters().migrated_bytes_to_host, 2 * kPage) << "the rest is still discarded";
}

TEST_F(ResidencyTest, ACopyOfRowsThatNoMemoryCouldHoldIsRefused) {
  std::byte* memory = managed(kBlock);
  std::byte* source = managed(kBlock);
  Copy copy{.to = memory, .from = source, .width_bytes = 16, .rows = 3};
  copy.to_pitch_bytes = copy.from_pitch_bytes = std::size_t{1} << 63;
  EXPECT_EQ(machine().work().copy(0, nullptr, copy, Wait::kYes), Status::kInvalidValue);
  copy.width_bytes = std::size_t{1} << 62;
  copy.rows = 4;
  EXPECT_EQ(machine().work().copy(0, nullptr, copy, Wait::kYes), Status::kInvalidValue);
}

TEST_F(ResidencyTest, KernelsAndHostSeeTheSameBytes) {
  std::byte* memory = managed(kBlock);
  memory[5] = std::byte{1};
  ASSERT_EQ(touch(0, memory, kBlock, UVMSIM_READ | UVMSIM_WRITE), UVMSIM_OK);
  auto* view = static_cast<std::byte*>(uvmsim_device_view(memory + 5));
  ASSERT_NE(view, nullptr);
  ASSERT_NE(view, memory + 5);
  EXPECT_EQ(*view, std::byte{1});
  *view = std::byte{2};
  EXPECT_EQ(memory[5], std::byte{2});
  EXPECT_EQ(view + kMiB, uvmsim_device_view(memory + 5 + kMiB)) << "linear";
}

}  // namespace
}  // namespace uvmsim::test
