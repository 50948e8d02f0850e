// Calls to a memory observer, limits of a device, and statistics of service.
#include <string>
#include <vector>

#include <fmt/format.h>

#include "allocator/process/framework_bridge.hpp"
#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class Listener final : public MemoryObserver {
 public:
  void pages_added(const StreamKey&, void*, std::size_t size_bytes) noexcept override {
    heard.push_back(fmt::format("+{} MiB", size_bytes / kMiB));
  }
  void pages_removed(const StreamKey&, void*, std::size_t size_bytes) noexcept override {
    heard.push_back(fmt::format("-{} MiB", size_bytes / kMiB));
  }
  void free_completed(const StreamKey&, void*, std::size_t requested_bytes) noexcept override {
    heard.push_back(fmt::format("free {}", requested_bytes));
  }
  std::vector<std::string> heard;
};

using Heard = std::vector<std::string>;

class MemoryObserverTest : public testing::AllocatorTest {
 protected:
  ServiceStatistics service() const { return allocator->statistics().service[2][0]; }
  Listener listener;
};

TEST_F(MemoryObserverTest, PagesOfTheDeviceFacadeAreHeardOfWhenTheyComeAndGo) {
  FrameworkBridge(*allocator).set_memory_observer(&listener);
  char* block = device(4 * kMiB);
  allocator->free(device(100));
  allocator->free(block);
  allocator->free(host(8 * kMiB));
  EXPECT_EQ(listener.heard, (Heard{"+4 MiB", "+2 MiB"}));
  listener.heard.clear();
  allocator->release_cached();
  EXPECT_EQ(listener.heard, Heard{"-6 MiB"});
  listener.heard.clear();
  FrameworkBridge(*allocator).set_memory_observer(nullptr);
  allocator->free(device(3 * kMiB));
  EXPECT_TRUE(listener.heard.empty());
}

TEST_F(MemoryObserverTest, AFreeThatHadToWaitIsHeardOfWhenItIsOver) {
  FrameworkBridge(*allocator).set_memory_observer(&listener);
  char* block = device(4 * kMiB, stream(1));
  EXPECT_FALSE(allocator->find(block)->waits_when_freed);
  allocator->free(block);
  block = device(4 * kMiB, stream(1));
  machine->busy = {stream(2)};
  allocator->record_use(block, 0, stream(2));
  EXPECT_TRUE(allocator->find(block)->waits_when_freed);
  listener.heard.clear();
  allocator->free(block);
  EXPECT_TRUE(listener.heard.empty());
  machine->finish(stream(2));
  EXPECT_EQ(device(4 * kMiB, stream(1)), block);
  EXPECT_EQ(listener.heard, Heard{"free 4194304"});
}

TEST_F(MemoryObserverTest, ADeviceHoldsNoMoreThanItsLimit) {
  allocator->limits().set_device_limit(0, 16 * kMiB);
  char* first = device(10 * kMiB);
  EXPECT_THROW(device(8 * kMiB), OutOfMemoryError);
  EXPECT_NE(host(64 * kMiB), nullptr) << "the limit is the device facade's";
  char* small = device(512);
  EXPECT_NE(small, nullptr);
  allocator->free(first);
  EXPECT_NE(device(14 * kMiB), nullptr) << "what is cached is given back first";
  EXPECT_THROW(device(4 * kMiB), OutOfMemoryError);
  EXPECT_EQ(service().out_of_memory, 2u);
  allocator->limits().set_device_limit(0, SIZE_MAX);
  EXPECT_NE(device(4 * kMiB), nullptr);
  EXPECT_THROW(allocator->limits().set_device_limit(1, 0), std::out_of_range);
}

TEST_F(MemoryObserverTest, ADisplacedBlocksPagesCountWhereTheyAreUsed) {
  char* block = host(8 * kMiB);
  to_device(block);
  allocator->free(block);
  auto reserved = [&](std::size_t facade) {
    return allocator->statistics().classes[facade][0][kSizeClasses].reserved_bytes.current;
  };
  EXPECT_EQ(reserved(0), 8 * kMiB);
  char* displaced = device(6 * kMiB);
  ASSERT_EQ(displaced, block) << "the pages are on the device already";
  EXPECT_EQ(reserved(0), 2 * kMiB);
  EXPECT_EQ(reserved(2), 6 * kMiB);
  for (const SegmentDescription& segment : allocator->inspection().segments()) {
    EXPECT_EQ(segment.facade == Facade::kDevice, segment.base == displaced);
  }
  allocator->free(displaced);
  EXPECT_EQ(reserved(0), 8 * kMiB);
  EXPECT_EQ(reserved(2), 0u);
}

TEST_F(MemoryObserverTest, OneFacadesCacheIsGivenBackAlone) {
  allocator->free(device(4 * kMiB));
  allocator->free(allocator->allocate(Facade::kPinned, 0, 6 * kMiB));
  allocator->release_cached_of(Facade::kPinned);
  const Statistics now = allocator->statistics();
  EXPECT_EQ(now.classes[1][0][kSizeClasses].reserved_bytes.current, 0u);
  EXPECT_EQ(now.classes[2][0][kSizeClasses].reserved_bytes.current, 4 * kMiB);
}

TEST_F(MemoryObserverTest, SmallObjectsKeepToTheLimitToo) {
  allocator->limits().set_device_limit(0, 2 * kMiB);
  std::size_t served = 0;
  EXPECT_THROW(
      for (;;) {
        device(4096);
        ++served;
      },
      OutOfMemoryError);
  EXPECT_GT(served, 400u);
  EXPECT_EQ(allocator->statistics().classes[2][0][kSizeClasses].reserved_bytes.current, 2 * kMiB);
}

TEST_F(MemoryObserverTest, WhatServingTookIsCountedForEachDeviceAndReset) {
  allocator->free(device(64 * kMiB));
  EXPECT_EQ(service().span_allocations.calls, 1u);
  EXPECT_GE(service().span_allocations.longest, service().span_allocations.shortest);
  EXPECT_THROW(device(512 * kMiB), OutOfMemoryError);
  EXPECT_EQ(service().pressure_rounds, 1u);
  EXPECT_EQ(service().out_of_memory, 1u);
  EXPECT_EQ(service().fence_waits, 1u);
  EXPECT_EQ(service().span_frees.calls, 1u);
  EXPECT_EQ(allocator->statistics().service[0][0].out_of_memory, 0u) << "another facade's";
  allocator->reset_totals(Facade::kDevice, 0);
  EXPECT_EQ(service().out_of_memory + service().span_allocations.calls, 0u);
  EXPECT_EQ(allocator->statistics().out_of_memory, 1u) << "the process's own figure stays";
}

}  // namespace
}  // namespace uvm
