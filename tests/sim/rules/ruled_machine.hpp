// Residency by the rules of a driver that a test chooses, without the rest of a machine. There are
// two devices with room for four chunks each, and one arena, a range of eight blocks. A block and a
// number in that block name a page.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "sim/engine/residency.hpp"

namespace uvmsim::test {

inline constexpr std::size_t kArenaBlocks = 8;
inline constexpr std::size_t kChunks = 4;

// The rules of the modelled driver on a card: faults bring 64 KiB, a subtree fills above 51 %, and
// four faults of a block come at a time.
inline MachineRules card_rules() {
  MachineRules rules;
  rules.faults = {.granularity_pages = 16,
                  .density_percent = 51,
                  .first_touch_fills_block = true,
                  .faults_at_once = 4,
                  .batch_faults = 256};
  return rules;
}

class RuledMachine {
 public:
  explicit RuledMachine(const MachineRules& rules = card_rules(), std::size_t chunks = kChunks)
      : memories_{{0, chunks * kBlockBytes}, {1, chunks * kBlockBytes}},
        host_(rules.memory.host_bytes),
        residency_(
            kArenaBlocks, memories_, host_, counters_, [this](int, int) { return has_peers; },
            [](std::size_t) { return ~PageMask{}; }, rules) {}

  Status read(int device, std::size_t block, std::size_t first, std::size_t count,
              std::uint64_t at_ns = 0) {
    return touch(device, pages(block, first, count), {true, false, at_ns});
  }
  Status write(int device, std::size_t block, std::size_t first, std::size_t count,
               std::uint64_t at_ns = 0) {
    return touch(device, pages(block, first, count), {false, true, at_ns});
  }
  Status touch(int device, PageRange range, Access access) {
    return residency_.touch(device, range, {0, kArenaBlocks * kPagesPerBlock}, policy, access);
  }
  Status prefetch(int location, std::size_t block, std::size_t first = 0,
                  std::size_t count = kPagesPerBlock) {
    return residency_.prefetch(location, pages(block, first, count), policy);
  }
  void discard(std::size_t block, std::size_t first = 0, std::size_t count = kPagesPerBlock) {
    residency_.discard(pages(block, first, count));
  }

  std::size_t resident(int location, std::size_t block) const {
    return residency_.resident_pages(location, block * kPagesPerBlock, kPagesPerBlock);
  }
  bool is_resident(int location, std::size_t block, std::size_t page) const {
    return residency_.is_resident(location, block * kPagesPerBlock + page);
  }

  static PageRange pages(std::size_t block, std::size_t first, std::size_t count) {
    return {block * kPagesPerBlock + first, block * kPagesPerBlock + first + count};
  }

  Residency& residency() { return residency_; }
  HostMemory& host() { return host_; }
  DeviceMemory& memory(int device) { return memories_[static_cast<std::size_t>(device)]; }
  const uvmsim_counters& counters() const { return counters_; }
  PlacementWork take_work() { return residency_.take_work(); }

  Policy policy;
  bool has_peers = false;

 private:
  std::vector<DeviceMemory> memories_;
  HostMemory host_;
  uvmsim_counters counters_{};
  Residency residency_;
};

// Checks after every test that the machine is consistent.
class RuleTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(machine.residency().broken_invariant(), ""); }
  RuledMachine machine;
};

}  // namespace uvmsim::test
