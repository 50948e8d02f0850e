#include "storage/residency_ledger.hpp"

#include <gtest/gtest.h>

#include <random>

namespace uvm {
namespace {

const void* page(std::size_t number) {
  return reinterpret_cast<const void*>(number * kPageBytes);
}
const void* inside(std::size_t number, std::size_t offset) {
  return reinterpret_cast<const void*>(number * kPageBytes + offset);
}

TEST(ResidencyLedger, ANewSpanIsNowhere) {
  ResidencyLedger ledger;
  ledger.add_span(page(100), 8 * kPageBytes);
  EXPECT_EQ(ledger.bytes_at(page(100), 8 * kPageBytes, Place::nowhere()), 8 * kPageBytes);
  EXPECT_EQ(ledger.bytes_at(Place::host()), 0u);
}

TEST(ResidencyLedger, SettingRoundsInwardAskingRoundsOutward) {
  ResidencyLedger ledger;
  ledger.add_span(page(100), 8 * kPageBytes);
  ledger.set(inside(101, 1), 2 * kPageBytes, Place::device(0));  // only page 102 is whole
  EXPECT_EQ(ledger.bytes_at(Place::device(0)), kPageBytes);
  EXPECT_TRUE(ledger.all_at(inside(102, 5), 10, Place::device(0)));
  EXPECT_FALSE(ledger.all_at(inside(102, kPageBytes - 5), 10, Place::device(0)));
  ledger.set(inside(103, 1), kPageBytes, Place::device(0));  // holds no whole page: a no-op
  EXPECT_EQ(ledger.bytes_at(Place::device(0)), kPageBytes);
}

TEST(ResidencyLedger, ARemovedSpanLeavesNoBytesBehind) {
  ResidencyLedger ledger;
  ledger.add_span(page(100), 4 * kPageBytes);
  ledger.add_span(page(200), 4 * kPageBytes);
  ledger.set(page(100), 4 * kPageBytes, Place::device(1));
  ledger.set(page(200), kPageBytes, Place::device(1));
  ledger.remove_span(page(100));
  EXPECT_EQ(ledger.bytes_at(Place::device(1)), kPageBytes);
  EXPECT_EQ(ledger.bytes_at(page(100), kPageBytes, Place::device(1)), 0u);
}

TEST(ResidencyLedger, APageThatHasMovedOnOrWasDroppedMayStillBeAtTheDevice) {
  ResidencyLedger ledger;
  ledger.add_span(page(100), 4 * kPageBytes);
  ledger.set(page(100), 2 * kPageBytes, Place::device(0));
  ledger.set(page(100), kPageBytes, Place::device(1));
  ledger.set(page(100), kPageBytes, Place::host());
  ledger.discard(page(101), kPageBytes);
  EXPECT_EQ(ledger.bytes_at(Place::device(0)), 0u);
  EXPECT_EQ(ledger.most_bytes_at(Place::device(0)), 2 * kPageBytes);
  EXPECT_EQ(ledger.most_bytes_at(page(101), kPageBytes, Place::device(0)), kPageBytes);
  EXPECT_EQ(ledger.most_bytes_at(Place::device(1)), kPageBytes);
  EXPECT_EQ(ledger.most_bytes_at(Place::device(2)), 0u);
}

TEST(ResidencyLedger, TotalsEqualTheSumOfPagesAfterRandomMoves) {
  ResidencyLedger ledger;
  constexpr std::size_t kPages = 64;
  ledger.add_span(page(1000), kPages * kPageBytes);
  std::vector<Place> model(kPages);
  std::mt19937 random(7);
  const Place places[] = {Place::host(), Place::device(0), Place::device(1), Place::nowhere()};
  for (int step = 0; step < 2000; ++step) {
    std::size_t first = random() % kPages;
    std::size_t count = 1 + random() % (kPages - first);
    Place place = places[random() % 4];
    ledger.set(page(1000 + first), count * kPageBytes, place);
    std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(first), count, place);
    for (Place each : {Place::host(), Place::device(0), Place::device(1)}) {
      auto expected =
          static_cast<std::size_t>(std::count(model.begin(), model.end(), each)) * kPageBytes;
      ASSERT_EQ(ledger.bytes_at(each), expected);
      ASSERT_EQ(ledger.bytes_at(page(1000), kPages * kPageBytes, each), expected);
    }
  }
}

}  // namespace
}  // namespace uvm
