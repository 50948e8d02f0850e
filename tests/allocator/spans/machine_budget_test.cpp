#include "allocator/spans/machine_budget.hpp"

#include <gtest/gtest.h>

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

DeviceDescription device(std::size_t total_bytes, bool integrated = false) {
  DeviceDescription out{"", total_bytes, {}, {}};
  out.capabilities.integrated = integrated;
  return out;
}

TEST(MachineBudget, DiscreteDevicesAddUpWithTheHostEachLessItsReserve) {
  MachineBudget budget = machine_budget({device(64 * kGiB), device(1 * kGiB)}, {}, 4 * kGiB);
  EXPECT_EQ(budget.devices[0].soft_budget_bytes, 64 * kGiB - 512 * kMiB);
  EXPECT_EQ(budget.devices[1].soft_budget_bytes, 1 * kGiB - 16 * kMiB);
  EXPECT_EQ(budget.hard_bytes, 65 * kGiB - 528 * kMiB + 4 * kGiB - 256 * kMiB);
}

TEST(MachineBudget, OnAnIntegratedMachineTheHostsMemoryIsAll) {
  MachineBudget budget = machine_budget({device(128 * kGiB, true)}, {}, 32 * kGiB);
  EXPECT_EQ(budget.hard_bytes, 32 * kGiB - 512 * kMiB);
  EXPECT_TRUE(budget.devices[0].coherent);
}

// The kernel counts such memory as available memory of the host.
TEST(MachineBudget, DeviceMemoryThatIsANodeOfTheHostIsCountedOnce) {
  DeviceDescription node = device(16 * kGiB);
  node.capabilities.memory_is_host_node = true;
  MachineBudget budget = machine_budget({node, device(1 * kGiB)}, {}, 32 * kGiB);
  EXPECT_EQ(budget.devices[0].soft_budget_bytes, 16 * kGiB - 256 * kMiB);
  EXPECT_EQ(budget.hard_bytes, 32 * kGiB - 512 * kMiB + 1 * kGiB - 16 * kMiB);
}

TEST(MachineBudget, ADeviceThatUsesTheHostsPageTablesIsCoherent) {
  DeviceDescription coherent = device(16 * kGiB);
  coherent.capabilities.host_page_tables = true;
  const MachineBudget budget = machine_budget({coherent, device(16 * kGiB)}, {}, 4 * kGiB);
  EXPECT_TRUE(budget.devices[0].coherent);
  EXPECT_FALSE(budget.devices[1].coherent);
}

TEST(MachineBudget, SettingsOverrideTheMachine) {
  Configuration configuration;
  configuration.reserve_bytes = 3 * kGiB;
  MachineBudget budget = machine_budget({device(2 * kGiB)}, configuration, 10 * kGiB);
  EXPECT_EQ(budget.devices[0].soft_budget_bytes, 0u) << "the reserve is larger than the device";
  EXPECT_EQ(budget.hard_bytes, 7 * kGiB);
  configuration.budget_bytes = 5 * kMiB;
  EXPECT_EQ(machine_budget({device(2 * kGiB)}, configuration, 10 * kGiB).hard_bytes, 5 * kMiB);
}

TEST(MachineBudget, ADevicesBudgetBoundsWhatIsPutThereAndNothingElse) {
  Configuration configuration;
  configuration.device_budget_bytes = 3 * kGiB;
  const MachineBudget budget =
      machine_budget({device(16 * kGiB), device(1 * kGiB)}, configuration, 4 * kGiB);
  EXPECT_EQ(budget.devices[0].soft_budget_bytes, 3 * kGiB);
  EXPECT_EQ(budget.devices[1].soft_budget_bytes, 1 * kGiB - 16 * kMiB);
  EXPECT_EQ(budget.hard_bytes,
            machine_budget({device(16 * kGiB), device(1 * kGiB)}, {}, 4 * kGiB).hard_bytes);
}

TEST(MachineBudget, RanksOfOneLaunchShareTheMachineEvenly) {
  Configuration configuration;
  configuration.reserve_bytes = 0;
  configuration.local_ranks = 4;
  DeviceDescription device;
  device.total_bytes = std::size_t{8} << 30;
  MachineBudget budget = machine_budget({device, device}, configuration, std::size_t{16} << 30);
  EXPECT_EQ(budget.hard_bytes, std::size_t{8} << 30) << "a quarter of two devices and the host";
  EXPECT_EQ(budget.devices[0].soft_budget_bytes, std::size_t{4} << 30) << "two ranks on each";
  configuration.local_ranks = 2;
  budget = machine_budget({device, device}, configuration, std::size_t{16} << 30);
  EXPECT_EQ(budget.devices[0].soft_budget_bytes, std::size_t{8} << 30) << "one rank on each";
}

TEST(ObtainableBytes, ADiscreteDeviceHasWhatItsDriverSaysWithinTheBudget) {
  const MemoryFigures driver{6 * kGiB, 16 * kGiB};
  EXPECT_EQ(obtainable_bytes(driver, false, 1 * kGiB, 40 * kGiB), 6 * kGiB);
  EXPECT_EQ(obtainable_bytes(driver, false, 1 * kGiB, 2 * kGiB), 2 * kGiB);
}

TEST(ObtainableBytes, AnIntegratedDeviceHasWhatTheHostCanGiveWithinTheBudget) {
  const MemoryFigures driver{2 * kGiB, 119 * kGiB};
  EXPECT_EQ(obtainable_bytes(driver, true, 110 * kGiB, 117 * kGiB), 110 * kGiB);
  EXPECT_EQ(obtainable_bytes(driver, true, 110 * kGiB, 7 * kGiB), 7 * kGiB);
  EXPECT_EQ(obtainable_bytes(driver, true, 130 * kGiB, 130 * kGiB), 119 * kGiB);
  EXPECT_EQ(obtainable_bytes(driver, true, 0, 117 * kGiB), 0u);
}

}  // namespace
}  // namespace uvm
