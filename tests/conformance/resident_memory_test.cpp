// How much memory of this process the kernel reports after memory was freed and given back. The
// allocator's own figures prove nothing here: they are right even if the driver keeps the pages.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "allocator/interface.hpp"
#include "allocator/reclaim/decay.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

std::size_t resident_mib() {
  std::size_t pages = 0;
  std::size_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  return resident_pages * host_page_bytes() / kMiB;
}

// A memory kind, and the size of the freed blocks.
using Case = std::tuple<Facade, std::size_t>;

class ResidentMemoryTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (testing::on_real_device()) GTEST_SKIP() << "pages of managed memory are the driver's there";
    start({});
  }
  void start(const Configuration& configuration) {
    allocator.reset();
    allocator = std::make_unique<CachingManagedAllocator>(testing::open("cuda"), configuration);
  }
  char* allocate(std::size_t size_bytes) {
    auto* block = static_cast<char*>(allocator->allocate(std::get<0>(GetParam()), 0, size_bytes));
    std::memset(block, 1, size_bytes);
    return block;
  }
  std::vector<char*> allocate_400_mib() {
    const std::size_t block_bytes = std::get<1>(GetParam());
    std::vector<char*> blocks;
    for (std::size_t bytes = 0; bytes < 400 * kMiB; bytes += block_bytes) {
      blocks.push_back(allocate(block_bytes));
    }
    return blocks;
  }
  void free_all(const std::vector<char*>& blocks) {
    for (char* block : blocks) allocator->free(block);
  }

  std::unique_ptr<CachingManagedAllocator> allocator;
};

TEST_P(ResidentMemoryTest, FreedMemoryComesBackWhileASmallBlockOfBeforeLives) {
  const std::size_t before = resident_mib();
  allocate(1000);
  const std::vector<char*> blocks = allocate_400_mib();
  ASSERT_GE(resident_mib(), before + 400);
  free_all(blocks);
  allocator->release_cached();
  EXPECT_LT(resident_mib(), before + 64);
}

TEST_P(ResidentMemoryTest, FreedMemoryComesBackWhileASmallBlockOfAfterwardsLives) {
  const std::size_t before = resident_mib();
  const std::vector<char*> blocks = allocate_400_mib();
  allocate(1000);
  free_all(blocks);
  allocator->release_cached();
  EXPECT_LT(resident_mib(), before + 64);
}

// The limits allow for a span of 32 MiB, which goes back as a whole, and for 2 MiB of pages.
TEST_P(ResidentMemoryTest, IdleMemoryDecaysByHalf) {
  Configuration configuration;
  configuration.decay_seconds = 8 * 3600;
  start(configuration);
  const std::size_t before = resident_mib();
  allocate(1000);
  free_all(allocate_400_mib());
  const std::size_t block_mib = std::get<1>(GetParam()) / kMiB;
  const std::size_t piece_mib = std::max<std::size_t>(32, block_mib);
  std::size_t left_mib = 400;
  // Later than the decay calls of the requests, which ran before anything was free.
  const Decay::Time begin = std::chrono::steady_clock::now() + std::chrono::hours(1);
  for (int period = 0; period <= 24; ++period) {
    allocator->limits().decay(begin + std::chrono::hours(period));
    if (period == 0 || period % 8 != 0) continue;
    left_mib /= 2;
    EXPECT_LT(resident_mib(), before + left_mib + piece_mib + 32) << period;
    EXPECT_GT(resident_mib() + piece_mib, left_mib) << period;
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, ResidentMemoryTest,
                         ::testing::Combine(::testing::Values(Facade::kHost, Facade::kPinned),
                                            ::testing::Values(4 * kMiB, 100 * kMiB)),
                         [](const auto& tested) {
                           return std::string(to_string(std::get<0>(tested.param))) +
                                  std::to_string(std::get<1>(tested.param) / kMiB) + "MiB";
                         });

}  // namespace
}  // namespace uvm
