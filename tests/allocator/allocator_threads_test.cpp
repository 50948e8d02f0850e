// Several threads at once.
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

using AllocatorThreads = testing::AllocatorTest;

TEST_F(AllocatorThreads, BlocksHandedFromThreadToThreadKeepTheirBytes) {
  std::mutex mutex;
  std::vector<std::pair<char*, std::size_t>> shelf;
  auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int step = 0; step < 3000; ++step) {
      std::size_t size_bytes = 1 + random() % (random() % 8 == 0 ? 3 * kMiB : 8192);
      auto facade = static_cast<Facade>(random() % 3);
      auto* block = static_cast<char*>(allocator->allocate(facade, 0, size_bytes, stream(seed)));
      block[0] = block[size_bytes - 1] = static_cast<char>(size_bytes);
      std::lock_guard lock(mutex);
      shelf.emplace_back(block, size_bytes);
      if (shelf.size() < 20) continue;
      auto [other, size] = shelf[random() % shelf.size()];
      std::erase(shelf, std::pair{other, size});
      ASSERT_EQ(other[0], static_cast<char>(size));
      ASSERT_EQ(other[size - 1], static_cast<char>(size));
      ASSERT_EQ(allocator->free(other), FreeResult::kFreed);
    }
  };
  std::thread one(work, 1);
  std::thread two(work, 2);
  std::thread three(work, 3);
  one.join();
  two.join();
  three.join();
  for (auto [block, size] : shelf) allocator->free(block);
  EXPECT_EQ(allocator->statistics().live_bytes.current, 0u);
}

}  // namespace
}  // namespace uvm
