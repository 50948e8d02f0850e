#include "storage/storage_records.hpp"

#include <gtest/gtest.h>

namespace uvm {
namespace {

TEST(StorageRecords, TheRealRecordLivesUntilTheLastUseGoes) {
  RealStorage real;
  IndirectStorage first;
  IndirectStorage second;
  IndirectStorage third;
  real.attach(&first);
  real.attach(&second);
  real.attach(&third);
  EXPECT_EQ(real.references, 3u);
  EXPECT_EQ(real.indirect, &third) << "the newest use comes first";
  EXPECT_FALSE(real.detach(&second)) << "from the middle";
  EXPECT_FALSE(real.detach(&third));
  EXPECT_TRUE(real.alive());
  EXPECT_EQ(real.indirect, &first);
  EXPECT_TRUE(real.detach(&first));
  EXPECT_FALSE(real.alive());
  EXPECT_EQ(real.indirect, nullptr);
}

}  // namespace
}  // namespace uvm
