// The C interface, on every runtime.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <uvmalloc/uvmalloc.h>
#include "allocator/interface.hpp"
#include "allocator/process/process_allocator.hpp"
#include "tools/trace/trace_reader.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

constexpr std::size_t kPage = 2 * kMiB;

uvmalloc_options options_for(const char* runtime) {
  uvmalloc_options options{};
  options.struct_bytes = sizeof options;
  options.runtime = runtime;
  options.budget_bytes = 256 * kMiB;
  return options;
}

class CInterface : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    testing::open(GetParam());  // registers the runtime
    const uvmalloc_options options = options_for(GetParam());
    ASSERT_EQ(uvmalloc_create(&options, &allocator), UVMALLOC_OK) << uvmalloc_last_error();
  }
  void TearDown() override { EXPECT_EQ(uvmalloc_destroy(allocator), UVMALLOC_OK); }

  uvmalloc_status allocate(std::size_t size_bytes, std::size_t alignment_bytes, void** out,
                           int facade = UVMALLOC_HOST) {
    return uvmalloc_allocate(allocator, facade, 0, size_bytes, alignment_bytes, nullptr, out);
  }
  char* host(std::size_t size_bytes) {
    void* block = nullptr;
    EXPECT_EQ(allocate(size_bytes, 0, &block), UVMALLOC_OK) << uvmalloc_last_error();
    return static_cast<char*>(block);
  }
  uvmalloc_block describe(const void* address) {
    uvmalloc_block block{};
    block.struct_bytes = sizeof block;
    EXPECT_EQ(uvmalloc_describe(allocator, address, &block), UVMALLOC_OK) << uvmalloc_last_error();
    return block;
  }
  uvmalloc_statistics statistics() {
    uvmalloc_statistics all{};
    all.struct_bytes = sizeof all;
    EXPECT_EQ(uvmalloc_get_statistics(allocator, &all), UVMALLOC_OK);
    return all;
  }

  uvmalloc_allocator* allocator = nullptr;
};

TEST_P(CInterface, EveryFacadeGivesBlocksThatAreDescribedAndFreed) {
  for (int facade : {UVMALLOC_HOST, UVMALLOC_PINNED, UVMALLOC_DEVICE}) {
    void* block = nullptr;
    ASSERT_EQ(allocate(3 * kMiB, 0, &block, facade), UVMALLOC_OK);
    const uvmalloc_block described = describe(static_cast<char*>(block) + 5);
    EXPECT_EQ(described.struct_bytes, sizeof(uvmalloc_block));
    EXPECT_EQ(described.base, block);
    EXPECT_EQ(described.size_bytes, facade == UVMALLOC_DEVICE ? 3 * kMiB : 4 * kMiB);
    EXPECT_EQ(described.requested_bytes, 3 * kMiB);
    EXPECT_EQ(described.facade, facade);
    EXPECT_EQ(described.device, 0);
    EXPECT_EQ(described.place, facade == UVMALLOC_DEVICE ? 0 : UVMALLOC_PLACE_HOST);
    EXPECT_EQ(described.live, 1);
    EXPECT_EQ(described.movable, 1);
    EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
    EXPECT_EQ(describe(block).live, 0);
  }
}

TEST_P(CInterface, SizesFromNothingToEverything) {
  void* block = this;
  EXPECT_EQ(allocate(0, 0, &block), UVMALLOC_OK);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(allocate(0, 4096, &block), UVMALLOC_OK);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(allocate(1, 1, &block), UVMALLOC_OK);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
  for (std::size_t size_bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, 257 * kMiB}) {
    block = this;
    EXPECT_EQ(allocate(size_bytes, 0, &block), UVMALLOC_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(block, nullptr);
    EXPECT_EQ(allocate(size_bytes, kPage, &block), UVMALLOC_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(allocate(size_bytes, kPage, &block, UVMALLOC_DEVICE), UVMALLOC_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_EQ(std::string(uvmalloc_last_error()).rfind("uvmalloc: out of memory", 0), 0u);
  EXPECT_EQ(statistics().out_of_memory, 12u);
  EXPECT_EQ(statistics().live_bytes, 0u);
}

TEST_P(CInterface, AlignmentsUpToAPageAreHonoured) {
  for (int facade : {UVMALLOC_HOST, UVMALLOC_PINNED, UVMALLOC_DEVICE}) {
    for (std::size_t alignment_bytes = 1; alignment_bytes <= kPage; alignment_bytes *= 2) {
      for (std::size_t size_bytes : {std::size_t{1}, std::size_t{513}, 3 * kMiB}) {
        void* padding = nullptr;
        void* block = nullptr;
        ASSERT_EQ(allocate(5000, 0, &padding, facade), UVMALLOC_OK);
        ASSERT_EQ(allocate(size_bytes, alignment_bytes, &block, facade), UVMALLOC_OK);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment_bytes, 0u)
            << size_bytes << " bytes of facade " << facade;
        if (facade != UVMALLOC_DEVICE) std::memset(block, 1, size_bytes);
        EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
        EXPECT_EQ(uvmalloc_free(allocator, padding), UVMALLOC_OK);
      }
    }
  }
}

TEST_P(CInterface, OtherAlignmentsAreRefused) {
  for (std::size_t alignment_bytes :
       {std::size_t{3}, std::size_t{513}, 2 * kPage, SIZE_MAX, SIZE_MAX / 2 + 1}) {
    void* block = this;
    EXPECT_EQ(allocate(64, alignment_bytes, &block), UVMALLOC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(block, nullptr);
  }
}

TEST_P(CInterface, UnknownDevicesAndFacadesAreRefused) {
  int count = 0;
  ASSERT_EQ(uvmalloc_device_count(allocator, &count), UVMALLOC_OK);
  ASSERT_EQ(count, 1);
  void* block = host(64);
  void* out = this;
  for (int device : {-1, 1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(uvmalloc_allocate(allocator, UVMALLOC_DEVICE, device, 64, 0, nullptr, &out),
              UVMALLOC_ERROR_NO_DEVICE);
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(uvmalloc_record_use(allocator, block, device, nullptr), UVMALLOC_ERROR_NO_DEVICE);
  }
  for (int destination : {1, -2, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(uvmalloc_move(allocator, block, destination, nullptr, 1), UVMALLOC_ERROR_NO_DEVICE);
  }
  for (int facade : {-1, 3, INT32_MAX}) {
    EXPECT_EQ(allocate(64, 0, &out, facade), UVMALLOC_ERROR_INVALID_ARGUMENT);
  }
}

TEST_P(CInterface, NullPointersAreRefusedOrFine) {
  void* out = this;
  int count = 7;
  uvmalloc_block block{};
  uvmalloc_statistics all{};
  constexpr uvmalloc_status kInvalid = UVMALLOC_ERROR_INVALID_ARGUMENT;
  EXPECT_EQ(uvmalloc_create(nullptr, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_process_allocator(nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_allocate(nullptr, UVMALLOC_HOST, 0, 1, 0, nullptr, &out), kInvalid);
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(uvmalloc_allocate(allocator, UVMALLOC_HOST, 0, 1, 0, nullptr, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_free(nullptr, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_record_use(nullptr, this, 0, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_wait_for_uses(nullptr, this), kInvalid);
  EXPECT_EQ(uvmalloc_move(nullptr, this, 0, nullptr, 0), kInvalid);
  EXPECT_EQ(uvmalloc_release_cached(nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_decay(nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_reset_peaks(nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_start_trace(nullptr, "a"), kInvalid);
  EXPECT_EQ(uvmalloc_start_trace(allocator, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_stop_trace(nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_mark_trace(nullptr, "a"), kInvalid);
  EXPECT_EQ(uvmalloc_mark_trace(allocator, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_mark_trace(allocator, ""), kInvalid);
  EXPECT_EQ(uvmalloc_set_device_limit(nullptr, 0, 1), kInvalid);
  EXPECT_EQ(uvmalloc_set_budget(nullptr, 4 * kMiB), kInvalid);
  EXPECT_EQ(uvmalloc_add_pressure_callback(
                nullptr, +[](void*) { return 0; }, nullptr),
            kInvalid);
  EXPECT_EQ(uvmalloc_add_pressure_callback(allocator, nullptr, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_describe(nullptr, this, &block), kInvalid);
  EXPECT_EQ(uvmalloc_describe(allocator, this, nullptr), kInvalid);
  uint64_t bytes = 1;
  EXPECT_EQ(uvmalloc_get_residency(nullptr, this, 1, 0, 0, &bytes), kInvalid);
  EXPECT_EQ(uvmalloc_get_residency(allocator, this, 1, 0, 0, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_get_residency(allocator, this, 0, 0, 0, &bytes), kInvalid);
  EXPECT_EQ(uvmalloc_get_residency(allocator, this, 1, 99, 0, &bytes), UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(uvmalloc_get_statistics(nullptr, &all), kInvalid);
  EXPECT_EQ(uvmalloc_get_statistics(allocator, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_device_count(nullptr, &count), kInvalid);
  EXPECT_EQ(count, 0);
  EXPECT_STREQ(uvmalloc_last_error(), "uvmalloc_device_count: allocator is NULL");
  EXPECT_EQ(uvmalloc_device_count(allocator, nullptr), kInvalid);
  EXPECT_EQ(uvmalloc_free(allocator, nullptr), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_destroy(nullptr), UVMALLOC_OK);
}

TEST_P(CInterface, AddressesThatAreNotBlocksAreDistinguished) {
  char* block = host(3 * kMiB);
  EXPECT_EQ(uvmalloc_free(allocator, block + 1), UVMALLOC_ERROR_INTERIOR);
  EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_ERROR_DOUBLE_FREE);
  EXPECT_EQ(uvmalloc_free(allocator, this), UVMALLOC_ERROR_NOT_OURS);
  for (const void* address : {static_cast<const void*>(this), static_cast<const void*>(block)}) {
    EXPECT_EQ(uvmalloc_record_use(allocator, address, 0, nullptr), UVMALLOC_ERROR_NOT_OURS);
    EXPECT_EQ(uvmalloc_wait_for_uses(allocator, address), UVMALLOC_ERROR_NOT_OURS);
    EXPECT_EQ(uvmalloc_move(allocator, const_cast<void*>(address), 0, nullptr, 1),
              UVMALLOC_ERROR_NOT_OURS);
  }
  uvmalloc_block described{};
  described.struct_bytes = sizeof described;
  EXPECT_EQ(uvmalloc_describe(allocator, this, &described), UVMALLOC_ERROR_NOT_OURS);
  uint64_t bytes = 1;
  EXPECT_EQ(uvmalloc_get_residency(allocator, this, 1, 0, 0, &bytes), UVMALLOC_ERROR_NOT_OURS);
  EXPECT_EQ(bytes, 0u);
}

TEST_P(CInterface, MovesThereAndBackKeepTheBytesAndAreCounted) {
  char* block = host(4 * kMiB);
  std::memset(block, 11, 4 * kMiB);
  ASSERT_EQ(uvmalloc_move(allocator, block + 100, 0, nullptr, 0), UVMALLOC_OK);
  EXPECT_EQ(describe(block).place, 0);
  ASSERT_EQ(uvmalloc_move(allocator, block, UVMALLOC_PLACE_HOST, nullptr, 1), UVMALLOC_OK);
  EXPECT_EQ(describe(block).place, UVMALLOC_PLACE_HOST);
  ASSERT_EQ(uvmalloc_move(allocator, block, UVMALLOC_PLACE_HOST, nullptr, 1), UVMALLOC_OK);
  EXPECT_EQ(block[0] + block[4 * kMiB - 1], 22);
  const uvmalloc_statistics all = statistics();
  EXPECT_EQ(all.moves_to_devices, 1u);
  EXPECT_EQ(all.moves_to_host, 1u);
  EXPECT_EQ(all.moved_bytes, 8 * kMiB);
  EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
}

TEST_P(CInterface, StatisticsFollowAllocationsAndReleases) {
  void* device = nullptr;
  ASSERT_EQ(allocate(10 * kMiB, 0, &device, UVMALLOC_DEVICE), UVMALLOC_OK);
  char* small = host(100);
  ASSERT_EQ(uvmalloc_record_use(allocator, device, 0, nullptr), UVMALLOC_OK);
  ASSERT_EQ(uvmalloc_wait_for_uses(allocator, device), UVMALLOC_OK);
  uvmalloc_statistics all = statistics();
  EXPECT_EQ(all.device.allocations, 1u);
  EXPECT_EQ(all.device.live_bytes, 10 * kMiB);
  EXPECT_EQ(all.host.live_bytes, 512u);
  EXPECT_EQ(all.pinned.allocations, 0u);
  EXPECT_EQ(all.live_bytes, 10 * kMiB + 512);
  EXPECT_EQ(all.budget_bytes, 256 * kMiB);
  EXPECT_GE(all.span_bytes, all.touched_bytes);
  EXPECT_EQ(uvmalloc_free(allocator, device), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_free(allocator, small), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_release_cached(allocator), UVMALLOC_OK);
  all = statistics();
  EXPECT_EQ(all.live_bytes, 0u);
  EXPECT_EQ(all.peak_bytes, 10 * kMiB + 512);
  EXPECT_EQ(all.device.allocated_bytes, 10 * kMiB);
  EXPECT_EQ(all.span_bytes, 0u);
}

TEST_P(CInterface, AStructureOfAnOlderHeaderIsFilledNoFurther) {
  char* block = host(100);
  // The library fills the members that it knows, and leaves the bytes behind them unchanged.
  struct {
    uvmalloc_block known;
    unsigned char beyond[8];
  } larger{};
  larger.known.struct_bytes = sizeof larger;
  std::memset(larger.beyond, 0xAB, sizeof larger.beyond);
  ASSERT_EQ(uvmalloc_describe(allocator, block, &larger.known), UVMALLOC_OK);
  EXPECT_EQ(larger.known.struct_bytes, sizeof(uvmalloc_block));
  for (unsigned char byte : larger.beyond) EXPECT_EQ(byte, 0xAB);

  uvmalloc_statistics all{};
  for (std::size_t too_small : {std::size_t{0}, sizeof all - 1}) {
    all.struct_bytes = too_small;
    EXPECT_EQ(uvmalloc_get_statistics(allocator, &all), UVMALLOC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(all.struct_bytes, too_small);
  }
  EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
}

TEST_P(CInterface, AnOptionThatThisVersionLacksIsRefusedUnlessItIsZero) {
  struct {
    uvmalloc_options known;
    std::uint64_t later;
  } larger{options_for(GetParam()), 0};
  larger.known.struct_bytes = sizeof larger;
  uvmalloc_allocator* other = nullptr;
  EXPECT_EQ(uvmalloc_create(&larger.known, &other), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_destroy(other), UVMALLOC_OK);
  larger.later = 1;
  EXPECT_EQ(uvmalloc_create(&larger.known, &other), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(other, nullptr);
  constexpr std::size_t kFirstVersion = offsetof(uvmalloc_options, device_budget_bytes);
  larger.known.struct_bytes = kFirstVersion - 1;
  EXPECT_EQ(uvmalloc_create(&larger.known, &other), UVMALLOC_ERROR_INVALID_ARGUMENT);
  larger.known.struct_bytes = kFirstVersion;
  larger.known.decay_seconds = -1;  // that version lacks this member, so its value is not read
  EXPECT_EQ(uvmalloc_create(&larger.known, &other), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_destroy(other), UVMALLOC_OK);
  larger.known.decay_seconds = 0;
  // A member that was never set holds any number, so the library must not read that many bytes.
  for (std::size_t too_large : {std::size_t{4097}, SIZE_MAX}) {
    larger.known.struct_bytes = too_large;
    EXPECT_EQ(uvmalloc_create(&larger.known, &other), UVMALLOC_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(uvmalloc_last_error(), "uvmalloc_create: struct_bytes is " +
                                         std::to_string(too_large) +
                                         "; accepted: the size of the structure, at most 4096");
  }
  larger.known.struct_bytes = sizeof(uvmalloc_options);
  larger.known.policy = 4;
  EXPECT_EQ(uvmalloc_create(&larger.known, &other), UVMALLOC_ERROR_INVALID_ARGUMENT);
  larger.known.policy = UVMALLOC_POLICY_DRIVER;
  larger.known.runtime = "abacus";
  EXPECT_EQ(uvmalloc_create(&larger.known, &other), UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_STRNE(uvmalloc_last_error(), "");
}

TEST_P(CInterface, ADevicesLimitIsThatOfTheOptionsUntilAnotherIsSet) {
  uvmalloc_options options = options_for(GetParam());
  options.device_budget_bytes = 16 * kMiB;
  uvmalloc_allocator* limited = nullptr;
  ASSERT_EQ(uvmalloc_create(&options, &limited), UVMALLOC_OK);
  void* block = nullptr;
  auto device = [&](std::size_t size_bytes) {
    return uvmalloc_allocate(limited, UVMALLOC_DEVICE, 0, size_bytes, 0, nullptr, &block);
  };
  EXPECT_EQ(device(12 * kMiB), UVMALLOC_OK);
  EXPECT_EQ(device(6 * kMiB), UVMALLOC_ERROR_OUT_OF_MEMORY);
  const std::string text = uvmalloc_last_error();
  EXPECT_NE(text.find("The limit of device 0 is 16 MiB."), std::string::npos) << text;
  EXPECT_NE(text.find("device_budget_bytes"), std::string::npos) << text;
  EXPECT_EQ(uvmalloc_allocate(limited, UVMALLOC_HOST, 0, 64 * kMiB, 0, nullptr, &block),
            UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_set_device_limit(limited, 0, 18 * kMiB), UVMALLOC_OK);
  EXPECT_EQ(device(6 * kMiB), UVMALLOC_OK);
  EXPECT_EQ(device(2 * kMiB), UVMALLOC_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(uvmalloc_set_device_limit(limited, 0, UINT64_MAX), UVMALLOC_OK);
  EXPECT_EQ(device(2 * kMiB), UVMALLOC_OK);
  for (int unknown : {-1, 1, INT32_MAX}) {
    EXPECT_EQ(uvmalloc_set_device_limit(limited, unknown, 1), UVMALLOC_ERROR_NO_DEVICE);
  }
  EXPECT_EQ(uvmalloc_destroy(limited), UVMALLOC_OK);
}

TEST_P(CInterface, TheBudgetChangesWhileTheAllocatorRuns) {
  void* block = nullptr;
  EXPECT_EQ(uvmalloc_set_budget(allocator, 16 * kMiB), UVMALLOC_OK);
  EXPECT_EQ(allocate(12 * kMiB, 0, &block), UVMALLOC_OK);
  EXPECT_EQ(allocate(8 * kMiB, 0, &block), UVMALLOC_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(uvmalloc_set_budget(allocator, 20 * kMiB), UVMALLOC_OK);
  EXPECT_EQ(allocate(8 * kMiB, 0, &block), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_set_budget(allocator, 2 * kMiB), UVMALLOC_OK) << "20 MiB stay in use";
  EXPECT_EQ(allocate(2 * kMiB, 0, &block, UVMALLOC_DEVICE), UVMALLOC_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(statistics().budget_bytes, 2 * kMiB);
  EXPECT_EQ(uvmalloc_set_budget(allocator, kMiB), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(uvmalloc_last_error(), "set_budget: the budget is 1 MiB; accepted: 2 MiB or more");
  EXPECT_EQ(statistics().budget_bytes, 2 * kMiB);
}

// A block that the callback of a program gives up.
struct Dispensable {
  uvmalloc_allocator* allocator = nullptr;
  void* block = nullptr;
  int calls = 0;
  static int give_up(void* argument) {
    auto& self = *static_cast<Dispensable*>(argument);
    ++self.calls;
    if (self.block == nullptr) return 0;
    EXPECT_EQ(uvmalloc_free(self.allocator, self.block), UVMALLOC_OK);
    self.block = nullptr;
    return 1;
  }
};

TEST_P(CInterface, APressureCallbackIsCalledBeforeARequestFails) {
  Dispensable cache{allocator, nullptr};
  ASSERT_EQ(allocate(200 * kMiB, 0, &cache.block, UVMALLOC_DEVICE), UVMALLOC_OK);
  ASSERT_EQ(uvmalloc_add_pressure_callback(allocator, Dispensable::give_up, &cache), UVMALLOC_OK);
  void* block = nullptr;
  EXPECT_EQ(allocate(100 * kMiB, 0, &block, UVMALLOC_DEVICE), UVMALLOC_OK);
  EXPECT_EQ(cache.calls, 1);
  EXPECT_EQ(cache.block, nullptr);
  EXPECT_EQ(allocate(200 * kMiB, 0, &block, UVMALLOC_DEVICE), UVMALLOC_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cache.calls, 2);
}

TEST_P(CInterface, APressureCallbackThatFreesALittleIsCalledUntilTheRequestFits) {
  struct Cache {
    uvmalloc_allocator* allocator;
    std::vector<void*> blocks;
    static int drop(void* argument) {
      Cache& self = *static_cast<Cache*>(argument);
      void* staging = nullptr;  // a callback may request memory that is not available
      EXPECT_EQ(
          uvmalloc_allocate(self.allocator, UVMALLOC_PINNED, 0, 100 * kMiB, 0, nullptr, &staging),
          UVMALLOC_ERROR_OUT_OF_MEMORY);
      if (self.blocks.empty()) return 0;
      EXPECT_EQ(uvmalloc_free(self.allocator, self.blocks.back()), UVMALLOC_OK);
      self.blocks.pop_back();
      return 1;
    }
  } cache{allocator, {}};
  for (int i = 0; i < 24; ++i) {
    cache.blocks.push_back(nullptr);
    ASSERT_EQ(allocate(10 * kMiB, 0, &cache.blocks.back(), UVMALLOC_DEVICE), UVMALLOC_OK);
  }
  ASSERT_EQ(uvmalloc_add_pressure_callback(allocator, Cache::drop, &cache), UVMALLOC_OK);
  void* block = nullptr;
  EXPECT_EQ(allocate(60 * kMiB, 0, &block, UVMALLOC_DEVICE), UVMALLOC_OK);
  EXPECT_EQ(cache.blocks.size(), 19u);
  EXPECT_EQ(allocate(300 * kMiB, 0, &block, UVMALLOC_DEVICE), UVMALLOC_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cache.blocks.size(), 19u) << "larger than the budget";
}

TEST_P(CInterface, OutOfMemoryNamesNoVariableToAProgramThatReadsNone) {
  void* block = nullptr;
  EXPECT_EQ(allocate(300 * kMiB, 0, &block, UVMALLOC_DEVICE), UVMALLOC_ERROR_OUT_OF_MEMORY);
  const std::string text = uvmalloc_last_error();
  EXPECT_NE(text.find("raise budget_bytes."), std::string::npos) << text;
  EXPECT_EQ(text.find("UVMALLOC_"), std::string::npos) << text;
}

TEST_P(CInterface, ABudgetBelowAPageIsRefused) {
  uvmalloc_options options = options_for(GetParam());
  uvmalloc_allocator* other = nullptr;
  options.budget_bytes = 1;
  EXPECT_EQ(uvmalloc_create(&options, &other), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(uvmalloc_last_error(), "budget_bytes is 1 B; accepted: 2 MiB or more");
  options.budget_bytes = 256 * kMiB;
  options.device_budget_bytes = 1;
  EXPECT_EQ(uvmalloc_create(&options, &other), UVMALLOC_ERROR_INVALID_ARGUMENT);
}

TEST_P(CInterface, IdleMemoryDecaysIfTheConfigurationSaysSo) {
  uvmalloc_options options = options_for(GetParam());
  uvmalloc_allocator* other = nullptr;
  for (double bad : {-1.0, std::nan(""), HUGE_VAL}) {
    options.decay_seconds = bad;
    EXPECT_EQ(uvmalloc_create(&options, &other), UVMALLOC_ERROR_INVALID_ARGUMENT);
  }
  options.decay_seconds = 1e-3;
  ASSERT_EQ(uvmalloc_create(&options, &other), UVMALLOC_OK);
  for (uvmalloc_allocator* each : {allocator, other}) {
    void* block = nullptr;
    ASSERT_EQ(uvmalloc_allocate(each, UVMALLOC_DEVICE, 0, 64 * kMiB, 0, nullptr, &block),
              UVMALLOC_OK);
    ASSERT_EQ(uvmalloc_free(each, block), UVMALLOC_OK);
  }
  uvmalloc_statistics all{};
  all.struct_bytes = sizeof all;
  do {
    ASSERT_EQ(uvmalloc_decay(other), UVMALLOC_OK);
    ASSERT_EQ(uvmalloc_decay(allocator), UVMALLOC_OK);
    ASSERT_EQ(uvmalloc_get_statistics(other, &all), UVMALLOC_OK);
  } while (all.touched_bytes != 0);
  EXPECT_EQ(statistics().touched_bytes, 64 * kMiB) << "by default it stays";
  EXPECT_EQ(uvmalloc_destroy(other), UVMALLOC_OK);
}

TEST_P(CInterface, PeaksOfFacadesBeginAnew) {
  void* device = nullptr;
  ASSERT_EQ(allocate(10 * kMiB, 0, &device, UVMALLOC_DEVICE), UVMALLOC_OK);
  char* small = host(100);
  EXPECT_EQ(uvmalloc_free(allocator, device), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_reset_peaks(allocator), UVMALLOC_OK);
  const uvmalloc_statistics all = statistics();
  EXPECT_EQ(all.device.peak_bytes, 0u);
  EXPECT_EQ(all.host.peak_bytes, 512u);
  EXPECT_EQ(all.peak_bytes, 10 * kMiB + 512);
  EXPECT_EQ(uvmalloc_free(allocator, small), UVMALLOC_OK);
}

TEST_P(CInterface, ATraceHoldsWhatHappensBetweenItsStartAndItsStop) {
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("uvmalloc-c-" + std::to_string(getpid()) + ".trace"));
  char* before = host(100);
  EXPECT_EQ(uvmalloc_stop_trace(allocator), UVMALLOC_OK) << "there is none";
  EXPECT_EQ(uvmalloc_mark_trace(allocator, "unheard"), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_start_trace(allocator, "/"), UVMALLOC_ERROR_NOT_USABLE);
  EXPECT_EQ(std::string(uvmalloc_last_error()).rfind("uvmalloc_start_trace: trace /: ", 0), 0u)
      << uvmalloc_last_error();
  ASSERT_EQ(uvmalloc_start_trace(allocator, file.c_str()), UVMALLOC_OK) << uvmalloc_last_error();
  EXPECT_EQ(uvmalloc_start_trace(allocator, file.c_str()), UVMALLOC_ERROR_NOT_USABLE);
  EXPECT_EQ(uvmalloc_mark_trace(allocator, "step 1"), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_free(allocator, host(3 * kMiB)), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_stop_trace(allocator), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_free(allocator, before), UVMALLOC_OK);

  const Trace trace = read_trace(file);
  std::filesystem::remove(file);
  auto count = [&](TraceKind kind) {
    return std::count_if(trace.events.begin(), trace.events.end(),
                         [&](const ThreadEvent& event) { return event.kind == kind; });
  };
  EXPECT_EQ(count(TraceKind::kAllocate), 2) << "one that was live already, and one";
  EXPECT_EQ(count(TraceKind::kFree), 1);
  ASSERT_EQ(count(TraceKind::kMark), 1);
  const auto mark =
      std::find_if(trace.events.begin(), trace.events.end(),
                   [](const ThreadEvent& event) { return event.kind == TraceKind::kMark; });
  EXPECT_EQ(trace.text(*mark), "step 1");
}

TEST_P(CInterface, TheDriverPolicySendsNoHints) {
  uvmalloc_options options = options_for(GetParam());
  options.policy = UVMALLOC_POLICY_DRIVER;
  uvmalloc_allocator* quiet = nullptr;
  ASSERT_EQ(uvmalloc_create(&options, &quiet), UVMALLOC_OK);
  void* block = nullptr;
  ASSERT_EQ(uvmalloc_allocate(quiet, UVMALLOC_HOST, 0, 4 * kMiB, 0, nullptr, &block), UVMALLOC_OK);
  ASSERT_EQ(uvmalloc_move(quiet, block, 0, nullptr, 0), UVMALLOC_OK);
  uvmalloc_statistics all{};
  all.struct_bytes = sizeof all;
  ASSERT_EQ(uvmalloc_get_statistics(quiet, &all), UVMALLOC_OK);
  EXPECT_EQ(all.prefetches, 0u);
  EXPECT_EQ(all.advice, 0u);
  EXPECT_EQ(all.moves_to_devices, 1u);
  EXPECT_EQ(uvmalloc_destroy(quiet), UVMALLOC_OK);
}

TEST_P(CInterface, AForkedChildHasHostMemoryOnly) {
  const auto in_child = [&] {
    void* block = nullptr;
    EXPECT_EQ(allocate(64, 512, &block), UVMALLOC_OK);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 512, 0u);
    EXPECT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
    EXPECT_EQ(allocate(64, 1024, &block), UVMALLOC_ERROR_NOT_USABLE);
    EXPECT_EQ(allocate(64, 0, &block, UVMALLOC_DEVICE), UVMALLOC_ERROR_NOT_USABLE);
    EXPECT_EQ(block, nullptr);
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(in_child(), ::testing::ExitedWithCode(0), "");
}

TEST_P(CInterface, ErrorTextsBelongToTheThread) {
  ASSERT_EQ(uvmalloc_free(allocator, this), UVMALLOC_ERROR_NOT_OURS);
  const std::string here = uvmalloc_last_error();
  std::thread([] {
    EXPECT_STREQ(uvmalloc_last_error(), "");
    EXPECT_EQ(uvmalloc_free(nullptr, nullptr), UVMALLOC_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(uvmalloc_last_error(), "uvmalloc_free: allocator is NULL");
  }).join();
  EXPECT_EQ(uvmalloc_last_error(), here);
}

TEST_P(CInterface, AHandleIsTheAllocatorOfTheCppInterface) {
  char* block = host(100);
  auto* same = reinterpret_cast<CachingManagedAllocator*>(allocator);
  ASSERT_TRUE(same->find(block).has_value());
  EXPECT_EQ(same->free(block), FreeResult::kFreed);
  same->inspection().check_invariants();
}

TEST_P(CInterface, AStreamThatIsForgottenLeavesItsMemoryToTheNextOne) {
  const auto stream = reinterpret_cast<uvmalloc_stream>(0);
  void* block = nullptr;
  ASSERT_EQ(allocate(20000, 0, &block, UVMALLOC_DEVICE), UVMALLOC_OK);
  ASSERT_EQ(uvmalloc_free(allocator, block), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_forget_stream(allocator, 0, stream), UVMALLOC_OK);
  void* other = nullptr;
  ASSERT_EQ(allocate(20000, 0, &other, UVMALLOC_DEVICE), UVMALLOC_OK);
  EXPECT_EQ(other, block);
  EXPECT_EQ(uvmalloc_forget_stream(allocator, 7, stream), UVMALLOC_ERROR_NO_DEVICE);
  EXPECT_EQ(uvmalloc_forget_stream(nullptr, 0, stream), UVMALLOC_ERROR_INVALID_ARGUMENT);
}

// A device with room for 31 pages of 2 MiB beside the reserve.
class CKernelUses : public testing::AllocatorTest {
 protected:
  void SetUp() override {
    allocator.reset();
    machine = std::make_shared<testing::FakeMachine>();
    machine->total_bytes = 64 * kMiB;
    Configuration configuration = without_thread_caches();
    configuration.thrashing = Thrashing::kIgnore;
    configuration.span_bytes = 256 * kMiB;
    allocator = std::make_unique<CachingManagedAllocator>(
        std::make_unique<testing::FakeRuntime>(machine), configuration);
    handle = reinterpret_cast<uvmalloc_allocator*>(allocator.get());
  }
  // Gives the device more pages than it has room for.
  void fill() {
    for (int i = 0; i < 32; ++i) blocks.push_back(device(kPage, testing::stream(1)));
  }

  uvmalloc_allocator* handle = nullptr;
  std::vector<char*> blocks;
};

TEST_F(CKernelUses, AnErrorSaysWhatIsWrong) {
  char outside = 0;
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 0), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(uvmalloc_last_error()),
            "uvmalloc_note_use: the access is 0; accepted: 1 (read), 2 (write), 3 (both), and 4 "
            "more where each byte is touched once");
  for (const int access : {-1, 4, 8, 9})
    EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, access),
              UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 5), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_note_use(nullptr, &outside, 1, nullptr, 1), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 1), UVMALLOC_OK) << "nothing is short";
  fill();
  EXPECT_EQ(uvmalloc_note_use(handle, &outside, 1, nullptr, 1), UVMALLOC_ERROR_NOT_OURS);
  EXPECT_EQ(uvmalloc_note_use(handle, blocks[0] + 100, 1, testing::stream(1), 3), UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_step_boundary(handle), UVMALLOC_OK);
  EXPECT_EQ(allocator->inspection().live_figures().kernels, 1u);
}

TEST_F(CKernelUses, ManyUsesOfOneLaunchAreOneKernel) {
  char outside = 0;
  const uvmalloc_use foreign = {&outside, 1, 3};
  EXPECT_EQ(uvmalloc_note_uses(handle, &foreign, 1, nullptr, 0), UVMALLOC_OK) << "nothing is short";
  fill();
  const uvmalloc_use uses[] = {{blocks[0] + 100, kMiB, 1}, {blocks[1], kMiB, 3}, foreign};
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 2, testing::stream(1), UVMALLOC_LAUNCH_KERNEL),
            UVMALLOC_OK);
  EXPECT_EQ(allocator->inspection().live_figures().kernels, 1u) << "not one for each range";
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 2, testing::stream(1), UVMALLOC_LAUNCH_GRAPH),
            UVMALLOC_OK);
  EXPECT_EQ(uvmalloc_note_uses(handle, nullptr, 0, testing::stream(1), UVMALLOC_LAUNCH_GRAPH),
            UVMALLOC_OK);
  EXPECT_EQ(allocator->inspection().live_figures().kernels, 2u);
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 3, testing::stream(1), 0), UVMALLOC_ERROR_NOT_OURS);
  EXPECT_EQ(uvmalloc_note_uses(handle, nullptr, 1, testing::stream(1), 0),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(uvmalloc_note_uses(handle, uses, 1, testing::stream(1), 2),
            UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(uvmalloc_last_error()),
            "uvmalloc_note_uses: the launch is 2; accepted: 0 (a kernel), 1 (a graph)");
  const uvmalloc_use nothing = {blocks[0], 1, 0};
  EXPECT_EQ(uvmalloc_note_uses(handle, &nothing, 1, nullptr, 0), UVMALLOC_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(allocator->inspection().live_figures().kernels, 2u)
      << "nothing that is wrong was noted";
}

INSTANTIATE_TEST_SUITE_P(Runtimes, CInterface, ::testing::ValuesIn(testing::kRuntimes),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(COptions, ReserveAndSpanSizeAreThoseThatAreGiven) {
  testing::open("fake");
  uvmalloc_options options = options_for("fake");
  options.budget_bytes = 64 * kMiB;              // a small machine has that much
  options.reserve_bytes = std::size_t{8} << 30;  // all memory of the device
  options.span_bytes = 6 * kMiB;
  uvmalloc_allocator* allocator = nullptr;
  ASSERT_EQ(uvmalloc_create(&options, &allocator), UVMALLOC_OK);
  void* block = nullptr;
  ASSERT_EQ(uvmalloc_allocate(allocator, UVMALLOC_DEVICE, 0, 4 * kMiB, 0, nullptr, &block),
            UVMALLOC_OK);
  uvmalloc_statistics all{};
  all.struct_bytes = sizeof all;
  ASSERT_EQ(uvmalloc_get_statistics(allocator, &all), UVMALLOC_OK);
  EXPECT_EQ(all.span_bytes, 6 * kMiB);
  EXPECT_EQ(all.prefetches, 0u) << "nothing of the device may be used";
  EXPECT_EQ(uvmalloc_destroy(allocator), UVMALLOC_OK);
}

TEST(CCreate, ADeviceWhosePagesDoNotMigrateIsNotUsable) {
  static RuntimeRegistration weak("weak", [](std::string*) -> std::unique_ptr<DeviceRuntime> {
    auto machine = std::make_shared<testing::FakeMachine>();
    machine->capabilities.migrates_on_fault = false;
    return std::make_unique<testing::FakeRuntime>(machine);
  });
  const uvmalloc_options options = options_for("weak");
  uvmalloc_allocator* allocator = nullptr;
  EXPECT_EQ(uvmalloc_create(&options, &allocator), UVMALLOC_ERROR_NOT_USABLE);
  EXPECT_EQ(allocator, nullptr);
  EXPECT_STREQ(
      uvmalloc_last_error(),
      "device 0 (Fake Device) is not used: pages of managed memory do not migrate to their user");
}

TEST(CVersion, LibraryHeaderAndTextAgree) {
  EXPECT_STREQ(uvmalloc_version(), UVMALLOC_VERSION);
  EXPECT_EQ(uvmalloc_version_number(), UVMALLOC_VERSION_NUMBER);
  EXPECT_STREQ(uvmalloc_version(), version());
}

TEST(CVersion, TheBuildIsDescribedInOneLine) {
  const std::string text = uvmalloc_build_info();
  EXPECT_TRUE(std::regex_match(
      text,
      std::regex(R"(\d+\.\d+\.\d+, commit ([0-9a-f]{40}(-dirty)?|unknown), (GCC|Clang) \d.*)")))
      << text;
  EXPECT_EQ(text.find(UVMALLOC_VERSION), 0u);
}

TEST(CStatus, EveryValueHasItsName) {
  EXPECT_STREQ(uvmalloc_status_name(UVMALLOC_OK), "UVMALLOC_OK");
  EXPECT_STREQ(uvmalloc_status_name(UVMALLOC_ERROR_OUT_OF_MEMORY), "UVMALLOC_ERROR_OUT_OF_MEMORY");
  EXPECT_STREQ(uvmalloc_status_name(UVMALLOC_ERROR_INTERNAL), "UVMALLOC_ERROR_INTERNAL");
  EXPECT_STREQ(uvmalloc_status_name(9), "unknown status");
  EXPECT_STREQ(uvmalloc_status_name(-1), "unknown status");
}

TEST(CProcessAllocator, IsOneAndIsNeverDestroyed) {
  uvmalloc_allocator* first = nullptr;
  uvmalloc_allocator* second = nullptr;
  ASSERT_EQ(uvmalloc_process_allocator(&first), UVMALLOC_OK) << uvmalloc_last_error();
  ASSERT_EQ(uvmalloc_process_allocator(&second), UVMALLOC_OK);
  EXPECT_EQ(first, second);
  EXPECT_EQ(reinterpret_cast<CachingManagedAllocator*>(first), process_allocator());
  EXPECT_EQ(uvmalloc_destroy(first), UVMALLOC_ERROR_INVALID_ARGUMENT);
}

TEST(CReport, IsCutToTheBufferAndEndedByNul) {
  const std::int64_t needed = uvmalloc_report_json(nullptr, 0);
  ASSERT_GT(needed, 4);
  char buffer[4] = {'x', 'x', 'x', 'x'};
  EXPECT_GT(uvmalloc_report_json(buffer, sizeof buffer), 4);
  EXPECT_EQ(buffer[0], '{');
  EXPECT_EQ(buffer[3], '\0');
  std::string whole(static_cast<std::size_t>(needed) + 100, 'x');  // times may take more digits
  const std::int64_t length = uvmalloc_report_json(whole.data(), whole.size());
  EXPECT_EQ(std::strlen(whole.c_str()) + 1, static_cast<std::size_t>(length));
}

TEST(CReport, VariablesMayHoldAnyBytes) {
  setenv("UVMALLOC_REPORT_DIR", "caf\xe9", 1);
  const std::int64_t needed = uvmalloc_doctor_json(nullptr, 0);
  ASSERT_GT(needed, 0);
  std::string text(static_cast<std::size_t>(needed), '\0');
  EXPECT_EQ(uvmalloc_doctor_json(text.data(), text.size() + 1), needed);
  unsetenv("UVMALLOC_REPORT_DIR");
  EXPECT_NE(text.find("\"caf\xef\xbf\xbd\""), std::string::npos)
      << "what is no UTF-8 is shown as U+FFFD";
}

// By then, the main thread's thread-local variables are gone.
TEST(CErrorDeathTest, ExitHandlersMayFailAndAsk) {
  EXPECT_EXIT(
      {
        (void)uvmalloc_free(nullptr, nullptr);
        std::atexit([] {
          (void)uvmalloc_device_count(nullptr, nullptr);
          std::fprintf(stderr, "said: %s\n", uvmalloc_last_error());
        });
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "said: uvmalloc_device_count: out is NULL");
}

}  // namespace
}  // namespace uvm
