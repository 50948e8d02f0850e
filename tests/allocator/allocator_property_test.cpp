// Random programs against a simple model: live blocks never overlap and keep their bytes, freed
// memory is not handed out before its streams are through, figures equal the model's.
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class AllocatorPropertyTest : public testing::AllocatorTest,
                              public ::testing::WithParamInterface<unsigned> {
 protected:
  struct Live {
    std::size_t size_bytes;
    unsigned char mark;
    Facade facade;
  };

  void SetUp() override {
    Configuration configuration = small_configuration();
    configuration.budget_bytes = 96 * kMiB;
    start(configuration);
    random.seed(GetParam());
  }

  std::size_t random_size() {
    double exponent = std::uniform_real_distribution<double>(0, 24)(random);
    return static_cast<std::size_t>(std::pow(2.0, exponent));
  }

  void fill(char* block, const Live& live) {
    block[0] = block[live.size_bytes - 1] = static_cast<char>(live.mark);
  }
  void check(const char* block, const Live& live) {
    ASSERT_EQ(static_cast<unsigned char>(block[0]), live.mark);
    ASSERT_EQ(static_cast<unsigned char>(block[live.size_bytes - 1]), live.mark);
  }

  void allocate_one() {
    Live live{random_size(), static_cast<unsigned char>(random()),
              static_cast<Facade>(random() % 3)};
    char* block = nullptr;
    try {
      block = static_cast<char*>(
          allocator->allocate(live.facade, 0, live.size_bytes, stream(1 + random() % 3)));
    } catch (const OutOfMemoryError&) {
      return;  // the budget is meant to be hit
    }
    auto next = model.lower_bound(block);
    ASSERT_TRUE(next == model.end() || block + live.size_bytes <= next->first)
        << "overlaps the next block";
    if (next != model.begin()) {
      --next;
      ASSERT_LE(next->first + next->second.size_bytes, block) << "overlaps the block before";
    }
    fill(block, live);
    model[block] = live;
  }

  std::map<char*, Live> model;
  std::mt19937 random;
};

TEST_P(AllocatorPropertyTest, LiveBlocksAreDisjointAndKeepTheirBytes) {
  for (int step = 0; step < 1500; ++step) {
    auto pick = [&] {
      return std::next(model.begin(), static_cast<std::ptrdiff_t>(random() % model.size()));
    };
    switch (model.empty() ? 0 : random() % 8) {
      case 0:
      case 1:
      case 2:
        allocate_one();
        break;
      case 3:
      case 4: {
        auto chosen = pick();
        check(chosen->first, chosen->second);
        ASSERT_EQ(allocator->free(chosen->first), FreeResult::kFreed);
        model.erase(chosen);
        break;
      }
      case 5: {
        auto chosen = pick();
        Place to = random() % 2 == 0 ? Place::host() : Place::device(0);
        ASSERT_NE(allocator->move(chosen->first,
                                  {Place::nowhere(), to, 0, stream(1 + random() % 3), true}),
                  nullptr);
        check(chosen->first, chosen->second);
        break;
      }
      case 6:
        allocator->record_use(pick()->first, 0, stream(1 + random() % 3));
        if (random() % 4 == 0) {
          std::lock_guard lock(machine->mutex);
          machine->busy.insert(stream(1 + random() % 3));
        }
        break;
      default:
        if (random() % 16 == 0) allocator->release_cached();
        machine->finish(stream(1 + random() % 3));
    }
    allocator->check_invariants();
    std::size_t requested = 0;
    for (const auto& [block, live] : model) requested += live.size_bytes;
    Statistics now = allocator->statistics();
    std::uint64_t counted = 0;
    for (const auto& facade : now.classes) {
      for (const auto& device : facade) {
        counted += device[kSizeClasses].requested_bytes.current;
      }
    }
    ASSERT_EQ(counted, requested);
    ASSERT_LE(now.touched_bytes.current, 96 * kMiB);
  }
  for (const auto& [block, live] : model) {
    check(block, live);
    allocator->free(block);
  }
  allocator->release_cached();
  EXPECT_EQ(machine->allocated_bytes, 0u) << "everything came back";
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllocatorPropertyTest, ::testing::Range(0u, 8u));

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
