// Managed host blocks are registered without the driver. Each test has its own process.
#include "preload/registered_memory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "allocator/process/process_allocator.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

namespace uvm::preload {
namespace {

constexpr int kInvalidValue = 1;
constexpr int kAlreadyRegistered = 712;

class RegisteredMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (process_allocator() != nullptr) GTEST_SKIP() << "not in a process of its own";
  }
  void start() {
    allocator = activate_process_allocator().allocator;
    ASSERT_NE(allocator, nullptr) << activate_process_allocator().reason;
    block = static_cast<char*>(allocator->allocate(Facade::kHost, 0, 4 * kMiB));
  }
  CachingManagedAllocator* allocator = nullptr;
  char* block = nullptr;
  RegisteredMemory& memory = RegisteredMemory::instance();
};

TEST_F(RegisteredMemoryTest, RangesLieInOneBlockAndDoNotMeet) {
  start();
  EXPECT_EQ(memory.add(block + kMiB, kMiB), 0);
  EXPECT_EQ(memory.add(block + kMiB, kMiB), kAlreadyRegistered);
  EXPECT_EQ(memory.add(block + kMiB + 4096, 4096), kAlreadyRegistered) << "inside";
  EXPECT_EQ(memory.add(block + 2 * kMiB - 1, kMiB), kAlreadyRegistered) << "its end";
  EXPECT_EQ(memory.add(block, kMiB + 1), kAlreadyRegistered) << "its beginning";
  EXPECT_EQ(memory.add(block, kMiB), 0) << "beside it";
  EXPECT_EQ(memory.add(block + 3 * kMiB, 2 * kMiB), kInvalidValue) << "beyond the block";
  EXPECT_EQ(memory.add(block + 3 * kMiB, 0), kInvalidValue);
  EXPECT_TRUE(memory.contains(block + 2 * kMiB - 1));
  EXPECT_FALSE(memory.contains(block + 2 * kMiB));
  EXPECT_FALSE(memory.remove(block + kMiB + 1)) << "no beginning";
  EXPECT_TRUE(memory.remove(block + kMiB));
  EXPECT_EQ(memory.add(block + kMiB, 2 * kMiB), 0);
}

TEST_F(RegisteredMemoryTest, WhatIsNoLiveHostBlockOfThisProcessIsTheDrivers) {
  start();
  int foreign = 0;
  EXPECT_EQ(memory.add(&foreign, 4), std::nullopt);
  EXPECT_EQ(memory.add(allocator->allocate(Facade::kDevice, 0, kMiB), kMiB), std::nullopt);
}

TEST_F(RegisteredMemoryTest, AForkedChildLeavesItToTheDriver) {
  start();
  EXPECT_EXIT(std::_Exit(memory.add(block, kMiB) == std::nullopt ? 0 : 1),
              ::testing::ExitedWithCode(0), "");
}

TEST_F(RegisteredMemoryTest, OrdinaryMemoryIsTheDrivers) {
  if (testing::on_real_device()) GTEST_SKIP() << "a real machine is of one kind";
  setenv("UVMSIM_PROFILE", "coherent", 1);
  setenv("UVMALLOC_HOST_MEMORY", "ordinary", 1);
  start();
  ASSERT_EQ(allocator->inspection().host_backing(), HostBacking::kOrdinary);
  EXPECT_EQ(memory.add(block, kMiB), std::nullopt);
}

}  // namespace
}  // namespace uvm::preload
