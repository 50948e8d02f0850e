// How requests are rounded and which class of pools serves them, by memory kind and size.
#include "allocator/policy/facade_traits.hpp"
#include "allocator/heap/pool.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

namespace uvm {
namespace {

TEST(FacadeTraits, ClassesAndRoundingChangeAtTheirBoundaries) {
  EXPECT_EQ(pool_class_of(Facade::kHost, 1), PoolClass::kPacked);
  EXPECT_EQ(pool_class_of(Facade::kHost, 4097), PoolClass::kPacked);
  EXPECT_EQ(pool_class_of(Facade::kHost, kPageGranularBytes - 1), PoolClass::kPacked);
  EXPECT_EQ(pool_class_of(Facade::kHost, kPageGranularBytes), PoolClass::kPageGranular);
  EXPECT_EQ(pool_class_of(Facade::kDevice, 2 * kPageBytes), PoolClass::kPacked);
  EXPECT_EQ(rounded_size(Facade::kHost, 4097), 4608u);
  EXPECT_EQ(rounded_size(Facade::kPinned, 4096), 4096u);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(rounded_size(Facade::kPinned, 4097), round_up(4097, page)) << "pages of this host";
  EXPECT_EQ(rounded_size(Facade::kPinned, 10 * page - 1), 10 * page);
  EXPECT_EQ(rounded_size(Facade::kHost, kPageGranularBytes), kPageBytes);
  EXPECT_EQ(rounded_size(Facade::kPinned, kPageGranularBytes), kPageBytes);
  EXPECT_EQ(rounded_size(Facade::kDevice, 3 * kPageGranularBytes), 3 * kPageGranularBytes);
}

}  // namespace
}  // namespace uvm
