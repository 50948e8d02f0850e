// The std::pmr adapter, on every runtime.
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <vector>

#include <uvmalloc/memory_resource.hpp>
#include "allocator/interface.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

class MemoryResource : public ::testing::TestWithParam<const char*> {
 protected:
  static Configuration configuration() {
    Configuration out;
    out.budget_bytes = 64 * kMiB;
    return out;
  }
  std::uint64_t live_bytes() const { return allocator.statistics().live_bytes.current; }

  CachingManagedAllocator allocator{testing::open(GetParam()), configuration()};
  ManagedMemoryResource resource{allocator};
};

TEST_P(MemoryResource, ContainersLiveInManagedMemoryAndGiveItBack) {
  {
    std::pmr::vector<int> numbers(1 << 20, 7, &resource);
    ASSERT_TRUE(allocator.find(numbers.data()).has_value());
    EXPECT_EQ(allocator.find(numbers.data())->facade, Facade::kHost);
    std::pmr::map<int, std::pmr::string> texts(&resource);
    texts[1] = std::pmr::string(5000, 'x', &resource);
    EXPECT_EQ(numbers.back(), 7);
    EXPECT_EQ(texts[1].size(), 5000u);
    EXPECT_GT(live_bytes(), 4 * kMiB);
  }
  EXPECT_EQ(live_bytes(), 0u);
  allocator.inspection().check_invariants();
}

TEST_P(MemoryResource, FacadeDeviceAndStreamAreThoseOfTheConstruction) {
  ManagedMemoryResource device(allocator, Facade::kDevice, 0, nullptr);
  void* block = device.allocate(100, 8);
  EXPECT_EQ(allocator.find(block)->facade, Facade::kDevice);
  EXPECT_EQ(allocator.find(block)->location, Place::device(0));
  device.deallocate(block, 100, 8);
  EXPECT_EQ(&device.allocator(), &allocator);
  EXPECT_EQ(device.facade(), Facade::kDevice);
  EXPECT_THROW(ManagedMemoryResource(allocator, Facade::kHost, 1), std::invalid_argument);
  EXPECT_THROW(ManagedMemoryResource(allocator, Facade::kHost, -1), std::invalid_argument);
}

TEST_P(MemoryResource, AlignmentsUpToTwoMebibytesAreHonouredAndOthersRefused) {
  for (std::size_t alignment_bytes = 1; alignment_bytes <= 2 * kMiB; alignment_bytes *= 2) {
    void* block = resource.allocate(40, alignment_bytes);
    EXPECT_EQ(address_of(block) % alignment_bytes, 0u);
    resource.deallocate(block, 40, alignment_bytes);
  }
  EXPECT_THROW((void)resource.allocate(40, 4 * kMiB), std::invalid_argument);
  EXPECT_THROW((void)resource.allocate(40, 24), std::invalid_argument);
  EXPECT_THROW((void)resource.allocate(40, 0), std::invalid_argument);
}

TEST_P(MemoryResource, NoBytesAreABlockAndTooManyABadAlloc) {
  void* first = resource.allocate(0, 1);
  void* second = resource.allocate(0, 1);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  resource.deallocate(first, 0, 1);
  resource.deallocate(second, 0, 1);
  EXPECT_THROW((void)resource.allocate(65 * kMiB, 8), std::bad_alloc);
  EXPECT_THROW((void)resource.allocate(SIZE_MAX / 2, 8), OutOfMemoryError);
  EXPECT_EQ(live_bytes(), 0u);
}

TEST_P(MemoryResource, EqualsOnlyWhatPutsMemoryInTheSamePlace) {
  CachingManagedAllocator other(testing::open(GetParam()), configuration());
  EXPECT_TRUE(resource.is_equal(ManagedMemoryResource(allocator)));
  EXPECT_FALSE(resource.is_equal(ManagedMemoryResource(allocator, Facade::kDevice)));
  EXPECT_FALSE(resource.is_equal(ManagedMemoryResource(other)));
  EXPECT_FALSE(resource.is_equal(*std::pmr::new_delete_resource()));
}

TEST_P(MemoryResource, ANodeTakesABlockAndBehindAPoolItsOwnBytes) {
  constexpr std::uint64_t kNodes = 20000;
  auto bytes_of_nodes = [&](std::pmr::memory_resource* from) {
    std::pmr::list<std::uint64_t> nodes(from);  // of 24 bytes
    for (std::uint64_t i = 0; i < kNodes; ++i) nodes.push_back(i);
    EXPECT_EQ(allocator.find(&nodes.back())->facade, Facade::kHost);
    return live_bytes();
  };
  EXPECT_EQ(bytes_of_nodes(&resource), kNodes * 512);
  {
    std::pmr::unsynchronized_pool_resource pool(&resource);
    EXPECT_LE(bytes_of_nodes(&pool), kNodes * 64);
  }
  EXPECT_EQ(live_bytes(), 0u);
  std::pmr::synchronized_pool_resource pool(&resource);
  EXPECT_LE(bytes_of_nodes(&pool), kNodes * 64);
}

TEST_P(MemoryResource, WhatIsNoBlockInUseIsReportedAndNotFreed) {
  char* block = static_cast<char*>(resource.allocate(100, 8));
  char foreign = 0;
  ::testing::internal::CaptureStderr();
  resource.deallocate(&foreign, 1, 1);
  resource.deallocate(block + 1, 100, 8);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("this resource did not allocate the memory"), std::string::npos) << said;
  EXPECT_NE(said.find("not the start of a block of 512 B"), std::string::npos) << said;
  EXPECT_EQ(live_bytes(), 512u);
  resource.deallocate(block, 100, 8);
  EXPECT_EQ(live_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Runtimes, MemoryResource, ::testing::ValuesIn(testing::kRuntimes),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace uvm
