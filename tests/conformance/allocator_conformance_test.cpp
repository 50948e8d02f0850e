// What the allocator must do on every runtime, for every memory kind.
#include <cstring>
#include <thread>
#include <vector>

#include "allocator/heap/block_pools.hpp"
#include "allocator/interface.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

using Case = std::tuple<const char*, Facade>;

class AllocatorConformance : public ::testing::TestWithParam<Case> {
 protected:
  static Configuration configuration() {
    Configuration out;
    out.budget_bytes = 512 * kMiB;
    return out;
  }
  Facade facade() const { return std::get<1>(GetParam()); }
  char* allocate(std::size_t size_bytes) {
    return static_cast<char*>(allocator.allocate(facade(), 0, size_bytes));
  }
  // If prefetches block, a thread sends them later. Waits for the prefetch of the first allocation.
  void wait_for_prefetches() const {
    const auto& device = allocator.inspection().devices().front();
    if (facade() != Facade::kDevice || !device.capabilities.prefetch_blocks) return;
    const HintCounters::Kind& prefetches = allocator.inspection().hints().of(HintKind::kPrefetch);
    while (prefetches.sent + prefetches.failed == 0) std::this_thread::yield();
  }

  CachingManagedAllocator allocator{testing::open(std::get<0>(GetParam())), configuration()};
};

TEST_P(AllocatorConformance, BlocksOfAllSizesAreAlignedAndHoldTheirBytes) {
  std::vector<std::pair<char*, std::size_t>> blocks;
  for (std::size_t size_bytes = 1; size_bytes <= 16 * kMiB; size_bytes = size_bytes * 3 + 1) {
    char* block = allocate(size_bytes);
    ASSERT_NE(block, nullptr);
    bool whole = pool_class_of(facade(), size_bytes) == PoolClass::kPageGranular;
    EXPECT_EQ(address_of(block) % (whole ? kPageBytes : kGranule), 0u);
    std::memset(block, static_cast<int>(blocks.size()), size_bytes);
    blocks.emplace_back(block, size_bytes);
  }
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    auto [block, size_bytes] = blocks[index];
    EXPECT_EQ(block[0], static_cast<char>(index));
    EXPECT_EQ(block[size_bytes - 1], static_cast<char>(index));
    EXPECT_EQ(allocator.free(block), FreeResult::kFreed);
  }
  allocator.inspection().check_invariants();
}

TEST_P(AllocatorConformance, ASteadyLoopAsksNothingOfTheMachine) {
  auto step = [&] {
    char* a = allocate(3 * kMiB);
    char* b = allocate(10000);
    allocator.free(a);
    allocator.free(b);
  };
  step();
  wait_for_prefetches();
  auto calls = allocator.inspection().runtime_calls();
  for (int round = 0; round < 50; ++round) step();
  EXPECT_EQ(allocator.inspection().runtime_calls(), calls);
}

TEST_P(AllocatorConformance, MovesThereAndBackKeepAddressAndBytes) {
  char* block = allocate(6 * kMiB);
  std::memset(block, 11, 6 * kMiB);
  for (int round = 0; round < 5; ++round) {
    ASSERT_NE(allocator.move(block, {Place::host(), Place::device(0), 0, nullptr, true}), nullptr);
    EXPECT_EQ(allocator.find(block)->location, Place::device(0));
    ASSERT_NE(allocator.move(block, {Place::device(0), Place::host(), 0, nullptr, true}), nullptr);
    EXPECT_EQ(allocator.find(block)->location, Place::host());
  }
  EXPECT_EQ(block[0], 11);
  EXPECT_EQ(block[6 * kMiB - 1], 11);
  EXPECT_EQ(allocator.free(block), FreeResult::kFreed);
  EXPECT_EQ(allocator.inspection().hints().of(HintKind::kPrefetch).failed, 0u);
  EXPECT_EQ(allocator.inspection().hints().of(HintKind::kAdvise).failed, 0u);
}

TEST_P(AllocatorConformance, BeyondTheBudgetItThrowsAndRecovers) {
  char* held = allocate(400 * kMiB);
  EXPECT_THROW(allocate(200 * kMiB), OutOfMemoryError);
  allocator.free(held);
  EXPECT_NE(allocate(500 * kMiB), nullptr);
}

TEST_P(AllocatorConformance, EverythingGoesBackToTheMachine) {
  std::vector<char*> blocks;
  for (std::size_t size_bytes : {4 * kMiB, std::size_t{700}, 33 * kMiB})
    blocks.push_back(allocate(size_bytes));
  for (char* block : blocks) allocator.free(block);
  allocator.release_cached();
  EXPECT_EQ(allocator.statistics().span_bytes.current, 0u);
  auto calls = allocator.inspection().runtime_calls();
  EXPECT_EQ(calls["allocate_managed"], calls["free_managed"]);
}

INSTANTIATE_TEST_SUITE_P(All, AllocatorConformance,
                         ::testing::Combine(::testing::ValuesIn(testing::kRuntimes),
                                            ::testing::Values(Facade::kHost, Facade::kPinned,
                                                              Facade::kDevice)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" +
                                  to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace uvm
