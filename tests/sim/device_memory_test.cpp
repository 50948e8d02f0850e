// Capacity of devices, what charges count against it, and eviction.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "machine_test.hpp"
#include "tests/support/sanitized.hpp"

namespace uvmsim::test {
namespace {

using DeviceMemoryTest = MachineTest;

TEST_F(DeviceMemoryTest, ChargesFollowTheSize) {
  struct {
    std::size_t bytes;
    std::size_t charge;
  } const cases[] = {{1, 64 * kKiB},          {64 * kKiB, 64 * kKiB}, {64 * kKiB + 1, 128 * kKiB},
                     {kMiB - 1, kMiB},        {kMiB, kBlock},         {kBlock, kBlock},
                     {kBlock + 1, 2 * kBlock}};
  for (const auto& [bytes, charge] : cases) {
    std::byte* memory = device_memory(0, bytes);
    EXPECT_EQ(unevictable_use(0), charge) << bytes;
    free(memory);
    EXPECT_EQ(unevictable_use(0), 0U);
  }
}

TEST_F(DeviceMemoryTest, DeviceMemoryIsExhaustedExactlyAtCapacity) {
  device_memory(0, kCapacity - kBlock);
  device_memory(0, kBlock);
  void* address = nullptr;
  EXPECT_EQ(machine().memory().allocate_device(0, 1, &address), Status::kOutOfMemory);
  EXPECT_EQ(machine().memory().allocate_device(1, kCapacity, &address), Status::kOk);
  free(address);
}

TEST_F(DeviceMemoryTest, SmallAllocationsMayTakeAllOfALargeDevice) {
  constexpr std::size_t kLarge = std::size_t{uvm::testing::steps(40, 4)} << 30;
  constexpr std::size_t kSmall = kBlock - kPage;
  ASSERT_EQ(uvmsim_set_capacity(0, kLarge), UVMSIM_OK);
  std::vector<std::byte*> all;
  while (all.size() < kLarge / kBlock) all.push_back(device_memory(0, kSmall));
  void* address = nullptr;
  EXPECT_EQ(machine().memory().allocate_device(0, 1, &address), Status::kOutOfMemory);
  for (std::byte* small : all) free(small);
  EXPECT_EQ(unevictable_use(0), 0U);
  EXPECT_EQ(machine().memory().allocate_device(0, kLarge, &address), Status::kOk);
  free(address);
}

TEST_F(DeviceMemoryTest, ThePeakIsOfBothKindsAtOnceSinceTheLastReset) {
  const auto peak = [] {
    std::size_t bytes = 0;
    EXPECT_EQ(uvmsim_peak_used(0, &bytes), UVMSIM_OK);
    return bytes;
  };
  ASSERT_EQ(uvmsim_reset_peak_used(0), UVMSIM_OK);
  std::byte* memory = device_memory(0, 2 * kBlock);
  const std::byte* other = managed(kBlock);
  ASSERT_EQ(prefetch(other, kBlock, 0), Status::kOk);
  free(memory);
  EXPECT_EQ(peak(), 3 * kBlock);
  ASSERT_EQ(uvmsim_reset_peak_used(0), UVMSIM_OK);
  EXPECT_EQ(peak(), kBlock);
  EXPECT_EQ(uvmsim_peak_used(-1, nullptr), UVMSIM_ERROR_INVALID);
  EXPECT_EQ(uvmsim_reset_peak_used(64), UVMSIM_ERROR_INVALID);
}

TEST_F(DeviceMemoryTest, ADeviceAllocationEvictsManagedMemory) {
  const std::byte* memory = managed(kCapacity);
  ASSERT_EQ(prefetch(memory, kCapacity, 0), Status::kOk);
  ASSERT_EQ(managed_use(0), kCapacity);
  device_memory(0, 3 * kBlock);
  EXPECT_EQ(managed_use(0), kCapacity - 3 * kBlock);
  EXPECT_EQ(resident(memory, 3 * kBlock, UVMSIM_HOST), 3 * kBlock) << "the oldest blocks went";
  EXPECT_EQ(resident(memory, kCapacity, 0), kCapacity - 3 * kBlock);
  EXPECT_EQ(counters().evicted_chunks, 3U);
  EXPECT_EQ(counters().evicted_bytes, 3 * kBlock);
}

TEST_F(DeviceMemoryTest, OldestMakeResidentIsEvictedFirstAndAHitDoesNotRefresh) {
  const std::byte* memory = managed(kCapacity + kBlock);
  ASSERT_EQ(prefetch(memory, kCapacity, 0), Status::kOk);
  ASSERT_EQ(touch(0, memory, kPage, UVMSIM_READ), UVMSIM_OK);          // a hit
  ASSERT_EQ(prefetch(memory + kBlock, kBlock, 0), Status::kOk);        // a refresh
  ASSERT_EQ(touch(0, memory + kCapacity, 1, UVMSIM_READ), UVMSIM_OK);  // one chunk too many
  EXPECT_EQ(resident(memory, kBlock, 0), 0U);
  EXPECT_EQ(resident(memory + kBlock, kBlock, 0), kBlock);
  device_memory(0, kBlock);
  EXPECT_EQ(resident(memory + kBlock, kBlock, 0), kBlock);
  EXPECT_EQ(resident(memory + 2 * kBlock, kBlock, 0), 0U);
}

TEST_F(DeviceMemoryTest, UnusedChunksGoFirstAndCostNoCopy) {
  const std::byte* memory = managed(kCapacity);
  ASSERT_EQ(prefetch(memory, kCapacity, 0), Status::kOk);
  ASSERT_EQ(prefetch(memory + 7 * kBlock, kBlock, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(managed_use(0), kCapacity) << "a chunk without pages stays held";
  device_memory(0, kBlock);
  EXPECT_EQ(counters().evicted_chunks, 1U);
  EXPECT_EQ(counters().evicted_bytes, 0U);
  EXPECT_EQ(resident(memory, kCapacity, 0), kCapacity - kBlock);
}

TEST_F(DeviceMemoryTest, WhollyDiscardedBlocksGoBeforeUsedOnes) {
  const std::byte* memory = managed(kCapacity);
  ASSERT_EQ(prefetch(memory, kCapacity, 0), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory + 9 * kBlock, kBlock}), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory + 5 * kBlock, kBlock - kPage}),
            Status::kOk);
  device_memory(0, kBlock);
  EXPECT_EQ(resident(memory + 9 * kBlock, kBlock, 0), 0U);
  EXPECT_EQ(resident(memory + 9 * kBlock, kBlock, UVMSIM_HOST), kBlock);
  EXPECT_EQ(counters().evicted_bytes, 0U);
  device_memory(0, kBlock);
  EXPECT_EQ(resident(memory, kBlock, 0), 0U) << "a partial discard changes no order";
}

// The modelled driver frees the host's pages only with their range.
TEST_F(DeviceMemoryTest, ADiscardLeavesThePagesOfTheHostWithTheAllocation) {
  std::byte* memory = managed(4 * kBlock);
  std::memset(memory, 1, 4 * kBlock);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory, 4 * kBlock}), Status::kOk);
  std::vector<unsigned char> present(4 * kBlock / kPage);
  ASSERT_EQ(mincore(memory, 4 * kBlock, present.data()), 0);
  EXPECT_EQ(std::count(present.begin(), present.end(), 1),
            static_cast<std::ptrdiff_t>(present.size()));
}

TEST_F(DeviceMemoryTest, ReadDuplicatedPagesAreEvictedWithoutACopy) {
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetReadMostly, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  device_memory(0, kCapacity);
  EXPECT_EQ(counters().evicted_chunks, 1U);
  EXPECT_EQ(counters().evicted_bytes, 0U);
}

TEST_F(DeviceMemoryTest, AKernelOverMoreThanCapacityEvictsItsOwnPages) {
  const std::byte* memory = managed(2 * kCapacity);
  ASSERT_EQ(touch(0, memory, 2 * kCapacity, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(managed_use(0), kCapacity);
  EXPECT_EQ(resident(memory, kCapacity, UVMSIM_HOST), kCapacity);
  EXPECT_EQ(resident(memory + kCapacity, kCapacity, 0), kCapacity);
}

TEST_F(DeviceMemoryTest, AKernelFailsWhereUnevictableMemoryLeavesNoChunk) {
  device_memory(0, kCapacity - kMiB / 2);
  const std::byte* memory = managed(kBlock);
  EXPECT_EQ(touch(0, memory, kPage, UVMSIM_READ), UVMSIM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(prefetch(memory, kPage, 0), Status::kOutOfMemory);
}

TEST_F(DeviceMemoryTest, ShrinkingEvictsManagedMemoryAndRefusesToDropTheRest) {
  const std::byte* memory = managed(8 * kBlock);
  device_memory(0, 4 * kBlock);
  ASSERT_EQ(prefetch(memory, 8 * kBlock, 0), Status::kOk);
  EXPECT_EQ(uvmsim_set_capacity(0, 3 * kBlock), UVMSIM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(managed_use(0), 8 * kBlock) << "nothing has changed";
  EXPECT_EQ(uvmsim_set_capacity(0, 6 * kBlock), UVMSIM_OK);
  EXPECT_EQ(managed_use(0), 2 * kBlock);
  EXPECT_EQ(counters().evicted_chunks, 6U);
  std::size_t capacity = 0;
  ASSERT_EQ(uvmsim_capacity(0, &capacity), UVMSIM_OK);
  EXPECT_EQ(capacity, 6 * kBlock);
  EXPECT_EQ(uvmsim_set_capacity(0, kBlock - 1), UVMSIM_ERROR_INVALID);
}

TEST_F(DeviceMemoryTest, FreeingManagedMemoryGivesItsChunksBack) {
  std::byte* memory = managed(4 * kBlock);
  ASSERT_EQ(prefetch(memory, 4 * kBlock, 0), Status::kOk);
  free(memory);
  EXPECT_EQ(managed_use(0), 0U);
  EXPECT_EQ(counters().managed_frees, 1U);
}

TEST_F(DeviceMemoryTest, SmallManagedAllocationsShareAChunk) {
  std::byte* first = managed(kPage);
  std::byte* second = managed(kPage);
  ASSERT_EQ(touch(0, first, kPage, UVMSIM_WRITE), UVMSIM_OK);
  ASSERT_EQ(touch(0, second, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(managed_use(0), kBlock);
  free(first);
  EXPECT_EQ(managed_use(0), kBlock);
  EXPECT_EQ(resident(second, kPage, 0), kPage);
}

}  // namespace
}  // namespace uvmsim::test
