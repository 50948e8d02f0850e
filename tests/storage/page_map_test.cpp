#include "storage/page_map.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>

namespace uvm {
namespace {

using Entry = std::atomic<int>;
using Map = PageMap<Entry>;

const void* at(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);
}

void set(Map* map, std::uintptr_t base, std::size_t size_bytes, int value) {
  map->each(at(base), size_bytes, [&](Entry& entry) { entry = value; });
}

// Returns the value at the address, or 0 if it has no entry or an unset entry.
int value_at(const Map& map, std::uintptr_t address) {
  const Entry* entry = map.find(at(address));
  return entry == nullptr ? 0 : entry->load();
}

TEST(PageMap, UnknownAddressesHaveNoEntry) {
  Map map;
  EXPECT_EQ(map.find(nullptr), nullptr);
  EXPECT_EQ(map.find(at(0x7f0000000000)), nullptr);
  EXPECT_EQ(map.find(at(~std::uintptr_t{0})), nullptr) << "beyond 48 bits";
}

TEST(PageMap, ARangeThatEndsBeyondTheTableIsRefusedAsAWhole) {
  Map map;
  const std::uintptr_t end = std::uintptr_t{1} << 48;
  for (std::uintptr_t base : {end - kPageBytes, end, ~std::uintptr_t{0} - 8 * kPageBytes + 1}) {
    int visited = 0;
    EXPECT_THROW(map.each(at(base), 2 * kPageBytes, [&](Entry&) { ++visited; }), std::bad_alloc);
    EXPECT_EQ(visited, 0);
  }
  set(&map, end - kPageBytes, kPageBytes, 7);
  EXPECT_EQ(value_at(map, end - 1), 7);
}

TEST(PageMap, EveryAddressOfASetRangeIsFoundAndNoneBeside) {
  Map map;
  std::uintptr_t base = 0x7f0000000000 - kPageBytes;  // crosses from one leaf into the next
  set(&map, base, 3 * kPageBytes, 7);
  EXPECT_EQ(value_at(map, base - 1), 0);
  EXPECT_EQ(value_at(map, base), 7);
  EXPECT_EQ(value_at(map, base + kPageBytes + 17), 7);
  EXPECT_EQ(value_at(map, base + 3 * kPageBytes - 1), 7);
  EXPECT_EQ(value_at(map, base + 3 * kPageBytes), 0);
}

TEST(PageMap, PagesHaveEntriesOfTheirOwn) {
  Map map;
  std::uintptr_t base = 64 * kPageBytes;
  set(&map, base, 4 * kPageBytes, 7);
  set(&map, base + kPageBytes, 2 * kPageBytes, 0);
  EXPECT_EQ(value_at(map, base), 7);
  EXPECT_EQ(value_at(map, base + kPageBytes), 0);
  EXPECT_EQ(value_at(map, base + 3 * kPageBytes), 7);
}

TEST(PageMap, ReadersRunBesideAWriter) {
  Map map;
  std::uintptr_t base = 0x10000 * kPageBytes;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const int found = value_at(map, base + 5 * kPageBytes);
      ASSERT_TRUE(found == 0 || found == 7);
    }
  });
  for (int round = 0; round < 2000; ++round) {
    set(&map, base, 16 * kPageBytes, round % 2 == 0 ? 7 : 0);
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace uvm
