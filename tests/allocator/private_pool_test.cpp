// Pools of their own for graphs and users, captures, and streams that go.
#include <vector>

#include "support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class PrivatePoolTest : public testing::AllocatorTest {
 protected:
  void begin(std::uint64_t id, StreamHandle routed, bool capturing = false) {
    allocator->begin_private_pool(
        0, id, [routed](StreamHandle asked) { return asked == routed; }, capturing);
  }
};

TEST_F(PrivatePoolTest, WhatIsFreeInAPrivatePoolServesItAlone) {
  begin(7, stream(1));
  char* inside = device(4 * kMiB, stream(1));
  char* small = device(512, stream(1));
  char* other_stream = device(4 * kMiB, stream(2));
  EXPECT_TRUE(allocator->end_private_pool(0, 7));
  allocator->free(inside);
  allocator->free(small);
  allocator->free(other_stream);
  EXPECT_NE(device(4 * kMiB, stream(1)), inside);
  EXPECT_NE(device(512, stream(1)), small);
  EXPECT_EQ(device(4 * kMiB, stream(2)), other_stream) << "it was not routed to the pool";
  begin(7, stream(1));
  EXPECT_EQ(device(4 * kMiB, stream(1)), inside);
  EXPECT_TRUE(allocator->end_private_pool(0, 7));
}

TEST_F(PrivatePoolTest, ItsMemoryStaysUntilItsLastUserReleasesIt) {
  begin(7, stream(1));
  allocator->free(device(8 * kMiB, stream(1)));
  EXPECT_TRUE(allocator->end_private_pool(0, 7));
  begin(7, stream(1));
  EXPECT_TRUE(allocator->end_private_pool(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 8 * kMiB);
  EXPECT_TRUE(allocator->release_private_pool(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 8 * kMiB) << "another user is left";
  EXPECT_TRUE(allocator->release_private_pool(0, 7));
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().touched_bytes.current, 0u);
  EXPECT_FALSE(allocator->release_private_pool(0, 7));
}

TEST_F(PrivatePoolTest, NothingIsAskedOfTheMachineDuringACaptureAndFencesFollowIt) {
  char* before = device(4 * kMiB, stream(1));
  machine->busy = {stream(2)};
  begin(7, stream(1), true);
  auto calls = allocator->runtime().calls();
  allocator->record_use(before, 0, stream(2));
  allocator->free(before);
  EXPECT_EQ(allocator->runtime().calls(), calls) << "no event was recorded on a captured stream";
  EXPECT_TRUE(allocator->end_private_pool(0, 7));
  EXPECT_EQ(allocator->statistics().fences, 1u);
  EXPECT_NE(device(4 * kMiB, stream(1)), before) << "its other stream is not through";
  machine->finish(stream(2));
  EXPECT_EQ(device(4 * kMiB, stream(1)), before);
  EXPECT_TRUE(allocator->release_private_pool(0, 7));
}

TEST_F(PrivatePoolTest, OutOfMemoryDuringACaptureWaitsForNothing) {
  begin(7, stream(1), true);
  machine->busy = {stream(1), stream(2)};
  EXPECT_THROW(device(512 * kMiB, stream(1)), OutOfMemoryError);
  EXPECT_EQ(machine->busy.size(), 2u) << "no device was waited for";
  EXPECT_TRUE(allocator->end_private_pool(0, 7));
}

TEST_F(PrivatePoolTest, WhatDoesNotExistIsRefused) {
  EXPECT_THROW(begin(0, stream(1)), std::invalid_argument);
  EXPECT_THROW(allocator->begin_private_pool(
                   3, 7, [](StreamHandle) { return true; }, false),
               std::invalid_argument);
  EXPECT_FALSE(allocator->end_private_pool(0, 7));
}

TEST_F(PrivatePoolTest, AStreamWithAHandleThatWasUsedBeforeGetsMemoryOfItsOwn) {
  char* live = device(4 * kMiB, stream(1));
  char* cached = device(8192, stream(1));
  char* small = device(512, stream(1));
  allocator->free(cached);
  allocator->free(small);
  allocator->forget_stream(0, stream(1));
  EXPECT_NE(device(8192, stream(1)), cached) << "the old stream's work may not be over";
  EXPECT_NE(device(512, stream(1)), small);
  allocator->free(live);
  EXPECT_NE(device(4 * kMiB, stream(1)), live);
  allocator->release_cached();
  EXPECT_EQ(allocator->statistics().live_bytes.current, 4 * kMiB + 8192 + 512);
}

}  // namespace
}  // namespace uvm
