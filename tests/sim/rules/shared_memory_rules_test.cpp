// Devices of integrated machines share the host's memory. Devices of coherent machines use the
// host's memory without a migration.
#include "ruled_machine.hpp"

namespace uvmsim::test {
namespace {

MachineRules integrated_rules() {
  MachineRules rules = card_rules();
  rules.memory.shares_host = true;
  rules.memory.host_bytes = 4 * kBlockBytes;
  return rules;
}

MachineRules coherent_rules(std::uint64_t threshold) {
  MachineRules rules = card_rules();
  rules.memory.uses_host_pages = true;
  rules.memory.access_counter_threshold = threshold;
  return rules;
}

class IntegratedRulesTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(machine.residency().broken_invariant(), "");
    EXPECT_EQ(
        machine.counters().migrated_bytes_to_device + machine.counters().migrated_bytes_to_host,
        0U);
    EXPECT_EQ(machine.memory(0).managed_bytes(), 0U);
  }
  RuledMachine machine{integrated_rules()};
};

TEST_F(IntegratedRulesTest, ATouchPopulatesTheHostsMemory) {
  ASSERT_EQ(machine.write(0, 0, 0, 3), Status::kOk);
  EXPECT_EQ(machine.resident(kHost, 0), 3U);
  EXPECT_EQ(machine.counters().populated_bytes_host, 3 * kPageBytes);
  EXPECT_EQ(machine.counters().remote_access_bytes, 0U) << "it is the device's own memory";
}

TEST_F(IntegratedRulesTest, APrefetchToTheDeviceGoesToTheHost) {
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  EXPECT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
  EXPECT_TRUE(machine.residency().is_whole_at(0, RuledMachine::pages(0, 0, kPagesPerBlock)));
}

TEST_F(IntegratedRulesTest, DiscardAndReadDuplicationDoNothing) {
  ASSERT_EQ(machine.prefetch(0, 0), Status::kOk);
  machine.discard(0);
  machine.policy.read_mostly = true;
  ASSERT_EQ(machine.read(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_TRUE(machine.residency().is_whole_at(kHost, RuledMachine::pages(0, 0, kPagesPerBlock)));
}

TEST_F(IntegratedRulesTest, NothingIsEvictedWhereItsMemoryEnds) {
  for (std::size_t block = 0; block < 4; ++block)
    ASSERT_EQ(machine.prefetch(0, block), Status::kOk);
  EXPECT_EQ(machine.write(0, 4, 0, 1), Status::kOutOfMemory);
  EXPECT_EQ(machine.counters().evicted_chunks, 0U);
}

// Blocks behind the arena are ordinary memory.
PageRange ordinary(std::size_t first, std::size_t count) {
  return RuledMachine::pages(kArenaBlocks, first, count);
}

TEST(CoherentRulesTest, OrdinaryMemoryOfTheHostIsUsedWhereItIs) {
  RuledMachine machine{coherent_rules(0)};
  ASSERT_EQ(machine.residency().prefetch(kHost, ordinary(0, kPagesPerBlock), {}), Status::kOk);
  ASSERT_EQ(machine.residency().touch(0, ordinary(0, kPagesPerBlock), ordinary(0, kPagesPerBlock),
                                      {}, {.read = true, .write = true}),
            Status::kOk);
  EXPECT_EQ(machine.resident(kHost, kArenaBlocks), kPagesPerBlock);
  EXPECT_EQ(machine.counters().remote_access_bytes, kBlockBytes);
  EXPECT_EQ(machine.counters().faults_device, 0U);
}

TEST(CoherentRulesTest, ManagedMemoryStillMigrates) {
  RuledMachine machine{coherent_rules(0)};
  ASSERT_EQ(machine.prefetch(kHost, 0), Status::kOk);
  ASSERT_EQ(machine.write(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(0, 0), kPagesPerBlock);
}

TEST(CoherentRulesTest, WhatWasEvictedIsUsedOnTheHost) {
  RuledMachine machine{coherent_rules(0)};
  for (std::size_t block = 0; block <= kChunks; ++block)
    ASSERT_EQ(machine.prefetch(0, block), Status::kOk);
  ASSERT_EQ(machine.write(0, 0, 0, kPagesPerBlock), Status::kOk);
  EXPECT_EQ(machine.resident(kHost, 0), kPagesPerBlock);
  EXPECT_EQ(machine.counters().remote_access_bytes, kBlockBytes);
}

TEST(CoherentRulesTest, EnoughCountedAccessesBringTheBlock) {
  RuledMachine machine{coherent_rules(256)};
  ASSERT_EQ(machine.residency().prefetch(kHost, ordinary(0, kPagesPerBlock), {}), Status::kOk);
  const auto touch = [&](std::size_t first, std::size_t count) {
    return machine.residency().touch(0, ordinary(first, count), ordinary(0, kPagesPerBlock), {},
                                     {.read = true, .write = false});
  };
  ASSERT_EQ(touch(0, 7), Status::kOk);
  EXPECT_EQ(machine.resident(0, kArenaBlocks), 0U) << "224 accesses of 128 bytes";
  ASSERT_EQ(touch(100, 1), Status::kOk);
  EXPECT_EQ(machine.resident(0, kArenaBlocks), kPagesPerBlock) << "256";
}

}  // namespace
}  // namespace uvmsim::test
