// The program's own memory on a machine with devices that reach it: the machine places this memory
// by the rules of managed memory, and the program may unmap it without notice.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "machine_test.hpp"

namespace uvmsim::test {
namespace {

class OrdinaryMemoryTest : public MachineTest {
 protected:
  void TearDown() override {
    for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.bytes);
    MachineTest::TearDown();
  }

  // Maps memory at a multiple of 2 MiB, with nothing mapped after it.
  std::byte* map(std::size_t bytes) {
    void* raw = mmap(nullptr, bytes + 2 * kBlock, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto base = round_up(reinterpret_cast<std::uintptr_t>(raw), kBlock);
    munmap(raw, bytes + 2 * kBlock);
    void* mapped = mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    mappings_.push_back({mapped, bytes});
    return static_cast<std::byte*>(mapped);
  }

  static void unmap(void* address, std::size_t bytes) { ASSERT_EQ(munmap(address, bytes), 0); }

 private:
  struct Mapping {
    void* begin;
    std::size_t bytes;
  };
  std::vector<Mapping> mappings_;
};

TEST_F(OrdinaryMemoryTest, IsPrefetchedLikeManagedMemoryAndUsedOnTheHostWhereItIs) {
  std::byte* memory = map(4 * kMiB);
  EXPECT_EQ(resident(memory, 4 * kMiB, 0), 0U);
  ASSERT_EQ(prefetch(memory, 3 * kMiB, 0), Status::kOk);
  EXPECT_EQ(resident(memory, 4 * kMiB, 0), 3 * kMiB);
  EXPECT_EQ(managed_use(0), 2 * kBlock);
  ASSERT_EQ(prefetch(memory, 3 * kMiB, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(resident(memory, 4 * kMiB, UVMSIM_HOST), 3 * kMiB);
  EXPECT_EQ(counters().migrated_bytes_to_host, 3 * kMiB);
  ASSERT_EQ(touch(0, memory + kMiB, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(counters().migrated_bytes_to_device, 0U);
  EXPECT_EQ(counters().remote_access_bytes, kPage);
  EXPECT_EQ(machine().broken_invariant(), "");
}

TEST_F(OrdinaryMemoryTest, KeepsAdviceByPage) {
  std::byte* memory = map(4 * kMiB);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetPreferredLocation, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetAccessedBy, 0), Status::kOk);
  int preferred = 0;
  std::uint64_t accessed_by = 0;
  ASSERT_EQ(uvmsim_advice(memory, &preferred, &accessed_by, nullptr), UVMSIM_OK);
  EXPECT_EQ(preferred, UVMSIM_HOST);
  EXPECT_EQ(accessed_by, 1U);
  ASSERT_EQ(uvmsim_advice(memory + kBlock, &preferred, nullptr, nullptr), UVMSIM_OK);
  EXPECT_EQ(preferred, -2);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(touch(0, memory, kBlock, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(counters().remote_access_bytes, kBlock);
  EXPECT_EQ(managed_use(0), 0U);
}

TEST_F(OrdinaryMemoryTest, AdviceGoesWithTheMappingOnceTheMachineLooks) {
  std::byte* memory = map(2 * kBlock);
  ASSERT_EQ(advise(memory, 2 * kBlock, Advice::kSetReadMostly, 0), Status::kOk);
  unmap(memory, kBlock + kPage);
  EXPECT_EQ(prefetch(memory, kBlock, 0), Status::kInvalidValue);
  ASSERT_NE(mmap(memory, kBlock + kPage, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
            MAP_FAILED);
  const auto read_mostly = [&](std::size_t offset) {
    int is = -1;
    EXPECT_EQ(uvmsim_advice(memory + offset, nullptr, nullptr, &is), UVMSIM_OK);
    return is;
  };
  EXPECT_EQ(read_mostly(0), 0);
  EXPECT_EQ(read_mostly(kBlock), 0);
  EXPECT_EQ(read_mostly(kBlock + kPage), 1);
  EXPECT_EQ(read_mostly(2 * kBlock - 1), 1);
}

TEST_F(OrdinaryMemoryTest, DiscardIsAcceptedAndDoesNothing) {
  std::byte* memory = map(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().placements().discard(0, stream_, {memory, kBlock}), Status::kOk);
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  EXPECT_EQ(counters().migrated_bytes_to_host, kBlock) << "copied like what is not discarded";
}

TEST_F(OrdinaryMemoryTest, WhatIsNotMappedIsInvalidAndOutOfReach) {
  std::byte* memory = map(kBlock);
  EXPECT_EQ(prefetch(memory, kBlock + 1, 0), Status::kInvalidValue);
  EXPECT_EQ(prefetch(memory + kBlock, 1, 0), Status::kInvalidValue);
  EXPECT_EQ(advise(memory, kBlock + 1, Advice::kSetReadMostly, 0), Status::kInvalidValue);
  EXPECT_EQ(machine().placements().discard(0, stream_, {memory, kBlock + 1}),
            Status::kInvalidValue);
  EXPECT_EQ(touch(0, memory + kBlock, 1, UVMSIM_READ), UVMSIM_ERROR_ADDRESS);
  EXPECT_EQ(uvmsim_device_view(memory + kBlock), nullptr);
  EXPECT_EQ(uvmsim_device_view(memory), memory);
  int local = 0;
  const Copy copy{.to = memory + kBlock, .from = &local, .width_bytes = 1};
  EXPECT_EQ(machine().work().copy(0, stream_, copy, Wait::kYes), Status::kInvalidValue);
  EXPECT_EQ(prefetch(reinterpret_cast<void*>(std::uintptr_t{1} << 60), 1, 0),
            Status::kInvalidValue);
}

TEST_F(OrdinaryMemoryTest, TheMachinesOwnMemoryIsNotTheProgramsEvenWhereItIsFree) {
  const std::byte* block = managed(kBlock);
  EXPECT_EQ(prefetch(block, kBlock + 1, 0), Status::kInvalidValue);
  EXPECT_EQ(prefetch(block + kBlock, 1, 0), Status::kInvalidValue);
  EXPECT_EQ(prefetch(device_memory(0, kBlock), 1, 0), Status::kInvalidValue);
  EXPECT_EQ(prefetch(uvmsim_device_view(block), 1, 0), Status::kInvalidValue);
  std::byte* memory = map(4 * kMiB);
  ASSERT_EQ(machine().memory().register_host(0, memory + kBlock, kBlock, 0), Status::kOk);
  EXPECT_EQ(prefetch(memory, 4 * kMiB, 0), Status::kInvalidValue);
  EXPECT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().memory().unregister_host(memory + kBlock), Status::kOk);
}

TEST_F(OrdinaryMemoryTest, UnmappedMemoryHoldsNoChunkOnceTheMachineLooks) {
  std::byte* memory = map(4 * kBlock);
  ASSERT_EQ(prefetch(memory, 4 * kBlock, 0), Status::kOk);
  unmap(memory, 2 * kBlock);
  EXPECT_EQ(managed_use(0), 2 * kBlock);
  EXPECT_EQ(machine().broken_invariant(), "");
  unmap(memory + 2 * kBlock + kPage, kPage);
  EXPECT_EQ(managed_use(0), 2 * kBlock);
  EXPECT_EQ(resident(memory + 2 * kBlock, kPage, 0), kPage);
  EXPECT_EQ(machine().broken_invariant(), "");
}

TEST_F(OrdinaryMemoryTest, UnmappedMemoryIsDroppedAndNotEvicted) {
  std::byte* memory = map(kCapacity);
  ASSERT_EQ(prefetch(memory, kCapacity, 0), Status::kOk);
  unmap(memory, kCapacity - kBlock);
  const std::byte* other = managed(kCapacity);
  ASSERT_EQ(prefetch(other, kCapacity, 0), Status::kOk);
  EXPECT_EQ(counters().evicted_chunks, 1U);
  EXPECT_EQ(counters().evicted_bytes, kBlock) << "of what is still there";
  EXPECT_EQ(resident(memory + kCapacity - kBlock, kBlock, UVMSIM_HOST), kBlock);
  EXPECT_EQ(machine().broken_invariant(), "");
}

TEST_F(OrdinaryMemoryTest, CopiesAndFillsUseItByItsAddress) {
  std::byte* memory = map(kBlock);
  std::byte* device = device_memory(0, kBlock);
  const Fill fill{.to = memory, .count = kBlock, .value = 5, .value_bytes = 1};
  ASSERT_EQ(machine().work().fill(0, stream_, fill, Wait::kYes), Status::kOk);
  EXPECT_EQ(memory[kBlock - 1], std::byte{5});
  const Copy there{.to = device,
                   .from = memory,
                   .width_bytes = kBlock,
                   .to_end = CopyEnd::kDeviceMemory,
                   .from_end = CopyEnd::kDeviceMemory};
  ASSERT_EQ(machine().work().copy(0, stream_, there, Wait::kNo), Status::kOk);
  std::memset(memory, 0, kBlock);
  const Copy back{.to = memory, .from = device, .width_bytes = kBlock};
  ASSERT_EQ(machine().work().copy(0, stream_, back, Wait::kNo), Status::kOk);
  EXPECT_EQ(memory[kBlock - 1], std::byte{5});
  EXPECT_EQ(counters().copy_bytes, 2 * kBlock);
}

TEST_F(OrdinaryMemoryTest, WhatACaptureRecordsIsNotSeenInMemoryBeforeTheLaunch) {
  std::byte* memory = map(4 * kMiB);
  ASSERT_EQ(machine().graphs().begin_capture(0, stream_, CaptureMode::kRelaxed), Status::kOk);
  const Fill fill{.to = memory + 1, .count = 1, .value = 3, .value_bytes = 1};
  ASSERT_EQ(machine().work().fill(0, stream_, fill, Wait::kNo), Status::kOk);
  GraphHandle graph = nullptr;
  ASSERT_EQ(machine().graphs().end_capture(0, stream_, &graph), Status::kOk);
  EXPECT_EQ(memory[1], std::byte{0});
  GraphExecHandle exec = nullptr;
  ASSERT_EQ(machine().graphs().instantiate(graph, 0, &exec), Status::kOk);
  ASSERT_EQ(machine().graphs().launch(0, stream_, exec), Status::kOk);
  EXPECT_EQ(memory[1], std::byte{3});
  EXPECT_EQ(machine().graphs().destroy_exec(exec), Status::kOk);
  EXPECT_EQ(machine().graphs().destroy(graph), Status::kOk);
}

}  // namespace
}  // namespace uvmsim::test

namespace {

// Runs before anything makes the machine.
const bool environment_is_set = [] {
  setenv("UVMSIM_DEVICES", "2", 1);
  setenv("UVMSIM_PROFILE", "coherent", 1);
  unsetenv("UVMSIM_CAPACITY");
  return true;
}();

}  // namespace
