// Which memory backs host spans, with devices that reach ordinary memory and with devices that do
// not. The fake machine knows managed memory only, so any other memory is ordinary.
#include "allocator/spans/host_backing.hpp"
#include "allocator/reclaim/decay.hpp"
#include "runtime/log.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/support/fork_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

bool is_mapped(void* address, std::size_t size_bytes) {
  return msync(address, size_bytes, MS_ASYNC) == 0;
}

std::size_t present_bytes(void* address, std::size_t size_bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(size_bytes / page);
  EXPECT_EQ(mincore(address, size_bytes, pages.data()), 0);
  std::size_t present = 0;
  for (unsigned char is_present : pages) present += is_present & 1u;
  return present * page;
}

DeviceDescription device_that(bool reaches_ordinary_memory, bool by_host_page_tables = false) {
  DeviceDescription out;
  out.capabilities.pageable_memory_access = reaches_ordinary_memory;
  out.capabilities.host_page_tables = by_host_page_tables;
  return out;
}

TEST(HostBacking, IsOrdinaryWhereThatIsBestOrWantedAndEveryDeviceReachesIt) {
  const DeviceDescription coherent = device_that(true, true);
  const DeviceDescription reaches = device_that(true);
  const DeviceDescription does_not = device_that(false);
  EXPECT_EQ(host_backing_of({coherent, coherent}, HostBacking::kAuto), HostBacking::kOrdinary);
  EXPECT_EQ(host_backing_of({coherent, reaches}, HostBacking::kAuto), HostBacking::kManaged);
  EXPECT_EQ(host_backing_of({coherent, does_not}, HostBacking::kOrdinary), HostBacking::kManaged);
  EXPECT_EQ(host_backing_of({coherent}, HostBacking::kManaged), HostBacking::kManaged);
  EXPECT_EQ(host_backing_of({reaches}, HostBacking::kAuto), HostBacking::kManaged);
  EXPECT_EQ(host_backing_of({reaches}, HostBacking::kOrdinary), HostBacking::kOrdinary);
  EXPECT_EQ(host_backing_of({does_not}, HostBacking::kOrdinary), HostBacking::kManaged);
}

TEST(HostBacking, OrdinaryMemoryIsAlignedAndGivesItsPagesBackWhenDropped) {
  char* memory = static_cast<char*>(map_ordinary(6 * kMiB));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(address_of(memory) % kPageBytes, 0u);
  EXPECT_EQ(present_bytes(memory, 6 * kMiB), 0u);
  std::memset(memory, 7, 6 * kMiB);
  EXPECT_TRUE(drop_ordinary(memory + 2 * kMiB, 2 * kMiB).ok());
  EXPECT_EQ(present_bytes(memory, 6 * kMiB), 4 * kMiB);
  EXPECT_EQ(memory[2 * kMiB - 1], 7);
  EXPECT_EQ(memory[2 * kMiB], 0);
  EXPECT_EQ(memory[4 * kMiB], 7);
  unmap_ordinary(memory, 6 * kMiB);
  EXPECT_FALSE(is_mapped(memory, 6 * kMiB));
  EXPECT_EQ(map_ordinary(std::size_t{1} << 60), nullptr);
}

class HostBackingTest : public testing::ForkTest {
 protected:
  static Configuration in_ordinary_memory(Configuration configuration) {
    configuration.host_backing = HostBacking::kOrdinary;
    return configuration;
  }
  static DeviceCapabilities reaching() {
    DeviceCapabilities out = testing::FakeMachine{}.capabilities;
    out.pageable_memory_access = true;
    return out;
  }
  void SetUp() override { start(in_ordinary_memory(small_configuration()), 1, reaching()); }

  bool is_managed(const void* address) const {
    for (const auto& [base, size_bytes] : machine->allocations) {
      if (address >= base && address < base + size_bytes) return true;
    }
    return false;
  }
  std::size_t touched_bytes() const { return allocator->statistics().touched_bytes.current; }
};

// Separate, so that a run can leave out the tests that fork.
class HostBackingForkTest : public HostBackingTest {};

TEST_F(HostBackingTest, OnlyTheHostFacadeIsInOrdinaryMemory) {
  EXPECT_EQ(allocator->inspection().host_backing(), HostBacking::kOrdinary);
  EXPECT_FALSE(is_managed(host(4 * kMiB)));
  EXPECT_FALSE(is_managed(host(100)));
  EXPECT_TRUE(is_managed(device(4 * kMiB)));
  EXPECT_TRUE(is_managed(allocator->allocate(Facade::kPinned, 0, 4 * kMiB)));
}

TEST_F(HostBackingTest, AUserMayKeepManagedMemory) {
  Configuration configuration = small_configuration();
  configuration.host_backing = HostBacking::kManaged;
  start(configuration, 1, reaching());
  EXPECT_EQ(allocator->inspection().host_backing(), HostBacking::kManaged);
  EXPECT_TRUE(is_managed(host(4 * kMiB)));
}

TEST_F(HostBackingTest, OrdinaryMemoryThatDevicesDoNotReachIsRefusedInOneLine) {
  Configuration configuration = small_configuration();
  configuration.host_backing = HostBacking::kOrdinary;
  ::testing::internal::CaptureStderr();
  start(configuration);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("host_backing=ordinary"), std::string::npos) << said;
  EXPECT_TRUE(is_managed(host(4 * kMiB)));
}

TEST_F(HostBackingTest, MovesAndHintsAreTheSame) {
  char* block = host(4 * kMiB);
  block[0] = 1;
  to_device(block, stream(1));
  to_host(block, stream(1));
  EXPECT_EQ(block[0], 1);
  auto prefetches_to = [&](Place place) {
    return std::count(machine->hints.begin(), machine->hints.end(),
                      Hint{HintKind::kPrefetch, {}, place, block, 4 * kMiB});
  };
  EXPECT_EQ(prefetches_to(Place::device(0)), 1);
  EXPECT_EQ(prefetches_to(Place::host()), 1);
}

TEST_F(HostBackingForkTest, AChildSharesBlocksCopyOnWriteAndNothingIsCopiedForIt) {
  char* block = host(4 * kMiB);
  char* moved = host(2 * kMiB);
  char* small = host(100);
  std::memset(block, 5, 4 * kMiB);
  std::memset(moved, 6, 2 * kMiB);
  std::memset(small, 7, 100);
  to_device(moved, stream(1));
  const int code = fork_and_run([&] {
    if (block[4 * kMiB - 1] != 5 || moved[2 * kMiB - 1] != 6 || small[99] != 7) return 1;
    block[0] = moved[0] = small[0] = 77;
    char* mine = host(kMiB);
    mine[0] = 1;
    for (char* freed : {mine, block, moved, small}) {
      if (allocator->free(freed) != FreeResult::kFreed) return 2;
    }
    return block[0] == 77 ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(block[0], 5);
  EXPECT_EQ(moved[0], 6);
  EXPECT_EQ(small[0], 7);
  EXPECT_EQ(allocator->statistics().forks.forks, 0u);
}

TEST_F(HostBackingForkTest, OnlyBlocksInManagedMemoryAreCopiedForAChild) {
  char* ordinary = host(4 * kMiB);
  char* pinned = static_cast<char*>(allocator->allocate(Facade::kPinned, 0, 2 * kMiB));
  char* made_on_device = device(6 * kMiB, stream(1));
  ordinary[0] = 1;
  pinned[0] = 2;
  made_on_device[0] = 3;
  to_host(made_on_device, stream(1));
  EXPECT_EQ(fork_and_run([&] { return ordinary[0] * 100 + pinned[0] * 10 + made_on_device[0]; }),
            123);
  EXPECT_EQ(allocator->statistics().forks.copied_bytes, 8 * kMiB);
}

TEST_F(HostBackingForkTest, ProcessesOfOneMachineShareWhatItHasForCopies) {
  Configuration configuration = small_configuration();
  configuration.local_ranks = 1u << 31;
  start(configuration);
  host(4 * kMiB);
  set_log_level(LogLevel::kOff);
  EXPECT_EQ(fork_and_run([] { return 0; }), 0);
  set_log_level(LogLevel::kWarning);
  EXPECT_EQ(forks().without_copy, 1u);
}

TEST_F(HostBackingForkTest, WhatTheParentDropsAfterAForkTheChildKeeps) {
  start(in_ordinary_memory(without_thread_caches()), 1, reaching());
  char* kept = host(2 * kMiB);
  char* block = host(4 * kMiB);
  block[0] = 9;
  const Waiting child = fork_and_wait([&] { return block[0]; });
  allocator->free(block);
  allocator->limits().decay({});
  EXPECT_THROW(host(300 * kMiB), OutOfMemoryError);
  EXPECT_EQ(touched_bytes(), 2 * kMiB) << "dropped";
  EXPECT_EQ(join(child), 9);
  allocator->free(kept);
}

TEST_F(HostBackingTest, IdlePagesGoBackToTheKernelWhileTheirSpanStays) {
  Configuration configuration = without_thread_caches();
  configuration.decay_seconds = 8;
  DeviceCapabilities without_discard = reaching();
  without_discard.discard = false;
  start(in_ordinary_memory(configuration), 1, without_discard);
  char* kept = host(2 * kMiB);
  char* idle = host(16 * kMiB);
  std::memset(idle, 1, 16 * kMiB);
  allocator->free(idle);
  allocator->limits().decay(Decay::Time{});
  for (int half_life = 1; half_life < 8; ++half_life) {
    allocator->limits().decay(Decay::Time{} + std::chrono::seconds(8 * half_life));
  }
  EXPECT_EQ(touched_bytes(), 2 * kMiB);
  EXPECT_EQ(present_bytes(idle, 16 * kMiB), 0u);
  EXPECT_EQ(allocator->statistics().discarded_bytes, 16 * kMiB);
  EXPECT_EQ(allocator->inspection().hints().of(HintKind::kDiscard).sent, 0u)
      << "a driver would do nothing";
  allocator->free(kept);
}

TEST_F(HostBackingTest, IdlePagesMakeRoomForTheDeviceUnderPressure) {
  start(in_ordinary_memory(without_thread_caches()), 1, reaching());
  char* kept = host(2 * kMiB);
  char* idle = host(200 * kMiB);
  allocator->free(idle);
  char* block = device(128 * kMiB);
  EXPECT_TRUE(is_managed(block));
  EXPECT_EQ(touched_bytes(), 130 * kMiB);
  allocator->free(block);
  allocator->free(kept);
}

TEST_F(HostBackingTest, ADeviceRequestThatTheDriverRefusesIsServedFromOrdinaryMemory) {
  start(in_ordinary_memory(without_thread_caches()), 1, reaching());
  char* kept = host(2 * kMiB);
  machine->allocatable_bytes = 0;
  char* block = device(4 * kMiB, stream(1));
  EXPECT_FALSE(is_managed(block));
  block[0] = 1;
  allocator->free(block);
  allocator->free(kept);
}

TEST_F(HostBackingTest, SpansAreUnmappedWhenAllOfThemIsFreeAndWithTheAllocator) {
  start(in_ordinary_memory(without_thread_caches()), 1, reaching());
  char* block = host(32 * kMiB);
  allocator->free(block);
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().span_bytes.current, 0u);
  EXPECT_FALSE(is_mapped(block, 32 * kMiB));
  block = host(32 * kMiB);
  allocator.reset();
  EXPECT_FALSE(is_mapped(block, 32 * kMiB));
}

TEST_F(HostBackingTest, SpansAreLargeWhateverTheDeviceCanDiscard) {
  Configuration configuration = small_configuration();
  configuration.span_bytes.reset();
  DeviceCapabilities without_discard = reaching();
  without_discard.discard = false;
  start(in_ordinary_memory(configuration), 1, without_discard);
  host(2 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 256 * kMiB) << "the budget";
  device(2 * kMiB);
  EXPECT_EQ(allocator->statistics().span_bytes.current, 288 * kMiB);
}

}  // namespace
}  // namespace uvm
