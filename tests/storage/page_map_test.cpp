#include <uvmalloc/storage/page_map.hpp>

#include <gtest/gtest.h>

#include <thread>

namespace uvm {
namespace {

const void* at(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);
}

TEST(PageMap, UnknownAddressesAreNotOurs) {
  PageMap<int> map;
  EXPECT_EQ(map.find(nullptr), nullptr);
  EXPECT_EQ(map.find(at(0x7f0000000000)), nullptr);
  EXPECT_EQ(map.find(at(~std::uintptr_t{0})), nullptr) << "beyond 48 bits";
}

TEST(PageMap, EveryAddressOfASetRangeIsFoundAndNoneBeside) {
  PageMap<int> map;
  int value = 0;
  std::uintptr_t base = 0x7f0000000000 - kPageBytes;  // crosses from one leaf into the next
  map.set(at(base), 3 * kPageBytes, &value);
  EXPECT_EQ(map.find(at(base - 1)), nullptr);
  EXPECT_EQ(map.find(at(base)), &value);
  EXPECT_EQ(map.find(at(base + kPageBytes + 17)), &value);
  EXPECT_EQ(map.find(at(base + 3 * kPageBytes - 1)), &value);
  EXPECT_EQ(map.find(at(base + 3 * kPageBytes)), nullptr);
}

TEST(PageMap, ClearingAPartLeavesTheRest) {
  PageMap<int> map;
  int value = 0;
  std::uintptr_t base = 64 * kPageBytes;
  map.set(at(base), 4 * kPageBytes, &value);
  map.set(at(base + kPageBytes), 2 * kPageBytes, nullptr);
  EXPECT_EQ(map.find(at(base)), &value);
  EXPECT_EQ(map.find(at(base + kPageBytes)), nullptr);
  EXPECT_EQ(map.find(at(base + 3 * kPageBytes)), &value);
}

TEST(PageMap, ReadersRunBesideAWriter) {
  PageMap<int> map;
  int value = 0;
  std::uintptr_t base = 0x10000 * kPageBytes;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      int* found = map.find(at(base + 5 * kPageBytes));
      ASSERT_TRUE(found == nullptr || found == &value);
    }
  });
  for (int round = 0; round < 2000; ++round) {
    map.set(at(base), 16 * kPageBytes, round % 2 == 0 ? &value : nullptr);
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace uvm
