// How the allocator calls a program's callbacks when memory runs out, for large and small requests.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "allocator/state/pressure_rounds.hpp"

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class PressureCallbacksTest : public testing::AllocatorTest {
 protected:
  void SetUp() override {
    Configuration configuration = small_configuration();
    configuration.budget_bytes = 64 * kMiB;
    configuration.span_bytes = 64 * kMiB;
    start(configuration);
  }
  // Allocates blocks that the program can do without. Each callback frees the newest block.
  void cache(Facade facade, std::size_t count, std::size_t size_bytes = 2 * kMiB) {
    for (std::size_t i = 0; i < count; ++i) {
      cached.push_back(static_cast<char*>(allocator->allocate(facade, 0, size_bytes)));
    }
  }
  bool drop_newest() {
    ++calls;
    if (cached.empty()) return false;
    EXPECT_EQ(allocator->free(cached.back()), FreeResult::kFreed);
    cached.pop_back();
    return true;
  }
  void* request(Facade facade, std::size_t size_bytes) {
    return allocator->allocate(facade, 0, size_bytes);
  }

  std::vector<char*> cached;
  int calls = 0;
};

TEST_F(PressureCallbacksTest, TheyAreCalledAgainUntilTheRequestFitsAndNoLonger) {
  for (const Facade facade : {Facade::kDevice, Facade::kHost, Facade::kPinned}) {
    SetUp();
    cached.clear();
    calls = 0;
    cache(facade, 30);
    allocator->limits().add_pressure_callback([&] { return drop_newest(); });
    EXPECT_NE(request(facade, 40 * kMiB), nullptr) << to_string(facade);
    EXPECT_EQ(calls, 18) << to_string(facade) << ": 30 blocks of 2 MiB leave 4 MiB";
    EXPECT_EQ(cached.size(), 12u);
    EXPECT_EQ(allocator->statistics().pressure_rounds, 1u);
  }
}

TEST_F(PressureCallbacksTest, WhatTheyFreeOfOneFacadeServesAnother) {
  cache(Facade::kHost, 30);
  allocator->limits().add_pressure_callback([&] { return drop_newest(); });
  EXPECT_NE(request(Facade::kDevice, 40 * kMiB), nullptr);
  EXPECT_EQ(calls, 18);
}

TEST_F(PressureCallbacksTest, WhatTheyFreeBehindFencesIsWaitedFor) {
  char* block = device(60 * kMiB, stream(1));
  allocator->record_use(block, 0, stream(2));
  machine->busy = {stream(2)};
  allocator->limits().add_pressure_callback([&] {
    if (block == nullptr) return false;
    allocator->free(std::exchange(block, nullptr));
    return true;
  });
  EXPECT_NE(device(60 * kMiB, stream(1)), nullptr);
  EXPECT_TRUE(machine->busy.empty());
}

TEST_F(PressureCallbacksTest, ForASmallObjectTheyAreCalledAgainToo) {
  // Four blocks make a segment of small objects.
  cache(Facade::kDevice, 64 * kMiB / (64 << 10), 64 << 10);
  allocator->limits().add_pressure_callback([&] { return drop_newest(); });
  EXPECT_NE(device(512), nullptr);
  EXPECT_EQ(calls, 4);
}

TEST_F(PressureCallbacksTest, ForASmallObjectWhatTheyFreeOfAnotherFacadeServesToo) {
  cache(Facade::kHost, 32);
  allocator->limits().add_pressure_callback([] { return false; });
  allocator->limits().add_pressure_callback([&] { return drop_newest(); });
  EXPECT_NE(device(512), nullptr);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(allocator->statistics().pressure_rounds, 1u);
}

TEST_F(PressureCallbacksTest, EachIsCalledInTurnAndTheRequestIsRetriedInBetween) {
  std::vector<char*> first, second;
  std::string order;
  for (int i = 0; i < 16; ++i) first.push_back(device(2 * kMiB));
  for (int i = 0; i < 16; ++i) second.push_back(device(2 * kMiB));
  auto drop_from = [&](std::vector<char*>* blocks, char name) {
    order += name;
    if (blocks->empty()) return false;
    allocator->free(blocks->back());
    blocks->pop_back();
    return true;
  };
  allocator->limits().add_pressure_callback([&] { return drop_from(&first, 'a'); });
  allocator->limits().add_pressure_callback([&] { return drop_from(&second, 'b'); });
  EXPECT_NE(device(2 * kMiB), nullptr);
  EXPECT_EQ(order, "a");
  EXPECT_NE(device(6 * kMiB), nullptr);
  EXPECT_EQ(order,
            "a"
            "aba");
}

TEST_F(PressureCallbacksTest, OneThatAllocatesIsNotEnteredAgain) {
  for (const std::size_t size_bytes : {2 * kMiB, std::size_t{512}}) {
    SetUp();
    cache(Facade::kDevice, 32);
    int depth = 0;
    int deepest = 0;
    allocator->limits().add_pressure_callback([&] {
      ++calls;
      deepest = std::max(deepest, ++depth);
      EXPECT_THROW(request(Facade::kPinned, 2 * kMiB), OutOfMemoryError);
      EXPECT_NE(request(Facade::kPinned, 512), nullptr) << "of the pages beyond the budget";
      --depth;
      return false;
    });
    calls = 0;
    if (size_bytes == 512) {
      EXPECT_NE(request(Facade::kDevice, size_bytes), nullptr);
    } else {
      EXPECT_THROW(request(Facade::kDevice, size_bytes), OutOfMemoryError);
    }
    EXPECT_EQ(deepest, 1);
    EXPECT_EQ(calls, 1);
  }
}

TEST_F(PressureCallbacksTest, OneThatSpillsByAStagingBufferMakesRoom) {
  cache(Facade::kDevice, 31);
  allocator->limits().add_pressure_callback([&] {
    void* staging = request(Facade::kPinned, 2 * kMiB);
    const bool has_freed = drop_newest();
    allocator->free(staging);
    return has_freed;
  });
  EXPECT_NE(device(20 * kMiB), nullptr);
}

TEST_F(PressureCallbacksTest, NoneIsCalledForARequestLargerThanTheBudget) {
  cache(Facade::kDevice, 30);
  allocator->limits().add_pressure_callback([&] { return drop_newest(); });
  EXPECT_THROW(device(65 * kMiB), OutOfMemoryError);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(cached.size(), 30u);
}

TEST_F(PressureCallbacksTest, NoneIsCalledForARequestLargerThanTheDevicesLimit) {
  allocator->limits().set_device_limit(0, 16 * kMiB);
  cache(Facade::kDevice, 8);
  allocator->limits().add_pressure_callback([&] { return drop_newest(); });
  EXPECT_THROW(device(18 * kMiB), OutOfMemoryError);
  EXPECT_EQ(calls, 0);
  EXPECT_NE(device(16 * kMiB), nullptr);
  EXPECT_EQ(calls, 8);
}

TEST_F(PressureCallbacksTest, WhatADeviceHoldsBeyondALoweredLimitIsUsedAgain) {
  cache(Facade::kDevice, 1, 40 * kMiB);
  allocator->limits().set_device_limit(0, 4 * kMiB);
  allocator->limits().add_pressure_callback([&] { return drop_newest(); });
  EXPECT_NE(device(30 * kMiB), nullptr);
  EXPECT_EQ(calls, 1);
}

TEST_F(PressureCallbacksTest, OneThatSaysYesAndFreesNothingIsCalledOnceARequest) {
  cache(Facade::kDevice, 32);
  allocator->limits().add_pressure_callback([&] {
    ++calls;
    return true;
  });
  EXPECT_THROW(device(2 * kMiB), OutOfMemoryError);
  EXPECT_EQ(calls, 1);
  EXPECT_NE(device(512), nullptr) << "of the pages beyond the budget, which come last";
  EXPECT_EQ(calls, 2);
}

TEST_F(PressureCallbacksTest, WhatOneThrowsLeavesTheRequest) {
  cache(Facade::kDevice, 32);
  bool throws = true;
  allocator->limits().add_pressure_callback([&] {
    if (throws) throw std::logic_error("not now");
    return drop_newest();
  });
  EXPECT_THROW(device(2 * kMiB), std::logic_error);
  throws = false;
  EXPECT_NE(device(2 * kMiB), nullptr) << "its thread is inside no callback any more";
}

class PressureRoundsTest : public ::testing::Test {
 protected:
  static std::shared_ptr<PressureRounds::Callback> callback(PressureRounds::Callback call) {
    return std::make_shared<PressureRounds::Callback>(std::move(call));
  }
  PressureRounds rounds(const void* of, PressureRounds::Callbacks callbacks,
                        std::size_t most_bytes = 1000) {
    return {of, std::move(callbacks), [this] { return freed_bytes; }, most_bytes};
  }
  const int owner = 0;
  const int other_owner = 0;
  std::int64_t freed_bytes = 0;
};

TEST_F(PressureRoundsTest, OneThatAllocatesAgainWhatItFreesEndsWithTheBudget) {
  int calls = 0;
  PressureRounds all = rounds(&owner, {callback([&] {
    ++calls;
    freed_bytes += 10;
    return true;
  })},
                              100);
  while (all.next()) {
  }
  EXPECT_EQ(calls, 10);
}

TEST_F(PressureRoundsTest, InsideACallbackOnlyThoseOfOtherAllocatorsAreCalled) {
  bool of_the_same = false;
  bool of_another = false;
  PressureRounds all = rounds(&owner, {callback([&] {
    PressureRounds another = rounds(&other_owner, {callback([&] {
      PressureRounds same = rounds(&owner, {callback([&] {
        of_the_same = true;
        return true;
      })});
      EXPECT_FALSE(same.next());
      return of_another = true;
    })});
    return another.next();
  })});
  EXPECT_TRUE(all.next());
  EXPECT_FALSE(all.next()) << "nothing was freed";
  EXPECT_TRUE(of_another);
  EXPECT_FALSE(of_the_same);
}

TEST_F(PressureRoundsTest, TheyEndWhenEachInTurnHasFreedNothing) {
  std::string order;
  int left = 2;
  auto named = [&](char name) {
    return callback([&, name] {
      order += name;
      if (name != 'b' || left == 0) return false;
      --left;
      ++freed_bytes;
      return true;
    });
  };
  PressureRounds all = rounds(&owner, {named('a'), named('b'), named('c')});
  while (all.next()) {
  }
  EXPECT_EQ(order, "abcabcab");
}

TEST_F(PressureRoundsTest, WithoutCallbacksThereAreNone) {
  EXPECT_FALSE(rounds(&owner, {}).next());
}

}  // namespace
}  // namespace uvm
