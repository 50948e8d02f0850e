// Which chunk is evicted next, and what its eviction copies.
#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

class EvictionRulesTest : public RuleTest {
 protected:
  void fill() {
    for (std::size_t block = 0; block < kChunks; ++block)
      ASSERT_EQ(machine.prefetch(0, block), Status::kOk);
    machine.take_work();
  }
  // Makes block 7 take a chunk.
  PlacementWork take_one_more() {
    EXPECT_EQ(machine.prefetch(0, 7), Status::kOk);
    return machine.take_work();
  }
};

TEST_F(EvictionRulesTest, FreeChunksAreTakenFirst) {
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  machine.take_work();
  const PlacementWork work = take_one_more();
  EXPECT_EQ(work.copied_chunks + work.reclaimed_chunks, 0U);
}

TEST_F(EvictionRulesTest, UnusedGoBeforeDiscardedAndDiscardedBeforeUsed) {
  fill();
  machine.discard(1);
  ASSERT_EQ(machine.prefetch(kHost, 2), Status::kOk);
  machine.take_work();
  EXPECT_EQ(take_one_more().reclaimed_chunks, 1U);
  EXPECT_EQ(machine.resident(0, 1), kPagesPerBlock) << "the unused chunk of block 2 went";
  ASSERT_EQ(machine.prefetch(0, 6), Status::kOk);
  EXPECT_EQ(machine.resident(0, 1), 0U) << "then the discarded one";
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
  ASSERT_EQ(machine.prefetch(0, 5), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), 0U) << "then the oldest used one";
}

TEST_F(EvictionRulesTest, APrefetchToTheHostLeavesTheChunkUnused) {
  fill();
  ASSERT_EQ(machine.prefetch(kHost, 3), Status::kOk);
  EXPECT_EQ(machine.memory(0).managed_bytes(), kChunks * kBlockBytes);
  EXPECT_EQ(take_one_more().evicted_bytes, 0U);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
}

TEST_F(EvictionRulesTest, APrefetchOfAResidentBlockRefreshesItsAgeAndCopiesNothing) {
  fill();
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  EXPECT_EQ(machine.take_work().copied_bytes(), 0U);
  take_one_more();
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
  EXPECT_EQ(machine.resident(0, 1), 0U);
}

TEST_F(EvictionRulesTest, AHitDoesNotRefreshTheAge) {
  fill();
  ASSERT_EQ(machine.write(0, 0, 0, kPagesPerBlock), Status::kOk);
  take_one_more();
  EXPECT_EQ(machine.resident(0, 0), 0U);
}

TEST_F(EvictionRulesTest, AFaultInABlockRefreshesItsAge) {
  ASSERT_EQ(machine.read(0, 0, 0, 1), Status::kOk);
  for (std::size_t block = 1; block < kChunks; ++block)
    ASSERT_EQ(machine.prefetch(0, block), Status::kOk);
  ASSERT_EQ(machine.read(0, 0, 400, 1), Status::kOk);
  take_one_more();
  EXPECT_EQ(machine.resident(0, 0), 32U);
  EXPECT_EQ(machine.resident(0, 1), 0U);
}

TEST_F(EvictionRulesTest, CleanPagesAreCopiedBack) {
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  for (std::size_t block = 1; block < kChunks; ++block)
    ASSERT_EQ(machine.prefetch(0, block), Status::kOk);
  machine.take_work();
  EXPECT_EQ(take_one_more().evicted_bytes, kBlockBytes) << "though the kernel only read them";
}

TEST_F(EvictionRulesTest, ReadDuplicatesAreNotCopiedBack) {
  machine.policy.read_mostly = true;
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  fill();
  const PlacementWork work = take_one_more();
  EXPECT_EQ(work.evicted_bytes, 0U);
  EXPECT_EQ(work.reclaimed_chunks, 1U);
  EXPECT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
}

TEST_F(EvictionRulesTest, DiscardedPagesAreNotCopiedBackButTakeMemoryOfTheHost) {
  fill();
  machine.discard(2);
  const PlacementWork work = take_one_more();
  EXPECT_EQ(work.evicted_bytes, 0U);
  EXPECT_EQ(machine.resident(kHost, 2), kPagesPerBlock);
  EXPECT_EQ(machine.host().used_bytes(), kBlockBytes);
}

TEST_F(EvictionRulesTest, ADiscardOfAPartChangesNoOrderAndSavesItsCopy) {
  fill();
  machine.discard(2, 0, kPagesPerBlock - 1);
  EXPECT_EQ(take_one_more().evicted_bytes, kBlockBytes);
  EXPECT_EQ(machine.resident(0, 0), 0U);
  ASSERT_EQ(machine.prefetch(0, 6), Status::kOk);
  machine.take_work();
  ASSERT_EQ(machine.prefetch(0, 5), Status::kOk);
  EXPECT_EQ(machine.take_work().evicted_bytes, kPageBytes) << "block 2, in its turn";
}

TEST_F(EvictionRulesTest, AWriteEndsADiscardAndAReadDoesNot) {
  fill();
  machine.discard(1);
  machine.discard(2);
  ASSERT_EQ(machine.read(0, 1, 0, kPagesPerBlock), Status::kOk);
  ASSERT_EQ(machine.write(0, 2, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(take_one_more().evicted_bytes, 0U);
  EXPECT_EQ(machine.resident(0, 1), 0U) << "still discarded";
  EXPECT_EQ(machine.resident(0, 2), kPagesPerBlock);
}

TEST_F(EvictionRulesTest, APrefetchEndsADiscard) {
  fill();
  machine.discard(3);
  ASSERT_EQ(machine.prefetch(0, 3), Status::kOk);
  EXPECT_EQ(take_one_more().evicted_bytes, kBlockBytes) << "block 0, the oldest";
}

TEST_F(EvictionRulesTest, AReusedDiscardedChunkIsNotZeroedWhereTheBlockWasFull) {
  fill();
  machine.discard(0);
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  EXPECT_EQ(machine.take_work().zeroed_bytes, 0U);
}

TEST_F(EvictionRulesTest, ThePreferredLocationDoesNotKeepABlockThere) {
  machine.policy.preferred = 0;
  fill();
  take_one_more();
  EXPECT_EQ(machine.resident(0, 0), 0U);
}

TEST_F(EvictionRulesTest, OnlyAsMuchIsEvictedAsANewChunkNeeds) {
  fill();
  EXPECT_EQ(take_one_more().copied_chunks, 1U);
}

TEST_F(EvictionRulesTest, UnevictableMemoryEvictsManagedMemory) {
  fill();
  EXPECT_TRUE(machine.residency().make_room(0, 2 * kBlockBytes));
  EXPECT_EQ(machine.take_work().copied_chunks, 2U);
  EXPECT_FALSE(machine.residency().make_room(0, (kChunks + 1) * kBlockBytes));
}

}  // namespace
}  // namespace uvmsim::test
