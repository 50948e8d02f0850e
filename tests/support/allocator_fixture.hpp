// An allocator on a fake machine that is small enough to state every address.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>

#include "allocator/interface.hpp"

#include "tests/support/fake_runtime.hpp"
#include "tests/support/sizes.hpp"

namespace uvm::testing {

class AllocatorTest : public ::testing::Test {
 protected:
  static Configuration small_configuration() {
    Configuration configuration;
    configuration.budget_bytes = 256 * kMiB;
    configuration.span_bytes = 32 * kMiB;
    return configuration;
  }

  // Returns a configuration in which every free goes to the pools at once.
  static Configuration without_thread_caches() {
    Configuration configuration = small_configuration();
    configuration.thread_cache_bytes = 0;
    return configuration;
  }

  // `capabilities` is a copy, because it may come from the machine that this call replaces.
  void start(const Configuration& configuration = small_configuration(), int devices = 1,
             DeviceCapabilities capabilities = FakeMachine{}.capabilities) {
    allocator.reset();
    machine = std::make_shared<FakeMachine>(devices);
    machine->capabilities = capabilities;
    allocator = std::make_unique<CachingManagedAllocator>(std::make_unique<FakeRuntime>(machine),
                                                          configuration);
  }
  void SetUp() override { start(); }
  void TearDown() override {
    if (allocator) allocator->inspection().check_invariants();
    allocator.reset();
    if (machine) {
      EXPECT_EQ(machine->allocated_bytes, 0u) << "a span was not given back";
      EXPECT_EQ(machine->events.size(), 0u) << "an event was lost";
      EXPECT_EQ(machine->streams, 0) << "a stream was lost";
    }
  }

  char* device(std::size_t size_bytes, StreamHandle on = nullptr) {
    return static_cast<char*>(allocator->allocate(Facade::kDevice, 0, size_bytes, on));
  }
  // Returns the message of the OutOfMemoryError that a request throws.
  std::string refusal(std::size_t size_bytes, StreamHandle on = nullptr) {
    try {
      device(size_bytes, on);
    } catch (const OutOfMemoryError& error) {
      return error.what();
    }
    return "it was allocated";
  }
  char* host(std::size_t size_bytes) {
    return static_cast<char*>(allocator->allocate(Facade::kHost, 0, size_bytes));
  }
  void to_device(void* address, StreamHandle on = nullptr) {
    ASSERT_NE(allocator->move(address, {Place::host(), Place::device(0), 0, on, true}), nullptr);
  }
  void to_host(void* address, StreamHandle on = nullptr, bool wait = true) {
    ASSERT_NE(allocator->move(address, {Place::device(0), Place::host(), 0, on, wait}), nullptr);
  }
  std::size_t count_hints(HintKind kind) const {
    return static_cast<std::size_t>(
        std::count_if(machine->hints.begin(), machine->hints.end(),
                      [&](const Hint& hint) { return hint.kind == kind; }));
  }

  std::shared_ptr<FakeMachine> machine;
  std::unique_ptr<CachingManagedAllocator> allocator;
};

}  // namespace uvm::testing
