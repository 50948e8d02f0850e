// Loads and stores of the host, if they are tracked (UVMSIM_CPU_TOUCHES), fault, migrate and take
// virtual time. If the kernel refuses to report them, the tests are skipped.
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "machine_test.hpp"
#include "tests/support/system_call_filter.hpp"

namespace uvmsim::test {
namespace {

std::byte load(const std::byte* memory) {
  return *static_cast<const volatile std::byte*>(memory);
}

class CpuTouchTest : public MachineTest {
 protected:
  void SetUp() override {
    MachineTest::SetUp();
    std::byte* memory = managed(kBlock);
    memory[0] = std::byte{1};
    const bool is_tracked = resident(memory, kBlock, UVMSIM_HOST) != 0;
    free(memory);
    uvmsim_reset_counters();
    if (!is_tracked) GTEST_SKIP() << "the kernel does not report touches";
  }
};

TEST_F(CpuTouchTest, AStoreToMemoryThatIsNowherePopulatesItOnTheHost) {
  std::byte* memory = managed(kBlock);
  memory[kPage] = std::byte{1};
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kPage);
  EXPECT_EQ(counters().populated_bytes_host, kPage);
  EXPECT_EQ(counters().fault_pages_host, 1U);
}

TEST_F(CpuTouchTest, ALoadOfADeviceResidentPageMigratesItAndIsCharged) {
  std::byte* memory = managed(2 * kBlock);
  memory[0] = std::byte{42};
  ASSERT_EQ(touch(0, memory, 2 * kBlock, UVMSIM_READ), UVMSIM_OK);
  ASSERT_EQ(resident(memory, 2 * kBlock, 0), 2 * kBlock);
  machine().streams().wait_for_device(0);
  uvmsim_reset_counters();
  const std::uint64_t before_ns = uvmsim_now_ns();
  EXPECT_EQ(load(memory), std::byte{42});
  EXPECT_EQ(resident(memory, 2 * kBlock, 0), 2 * kBlock - kPage);
  EXPECT_EQ(counters().migrated_bytes_to_host, kPage);
  EXPECT_EQ(counters().fault_pages_host, 1U);
  EXPECT_GE(uvmsim_now_ns() - before_ns, kPage / 50) << "the copy at 50 GB/s";
}

TEST_F(CpuTouchTest, ASecondTouchIsNoFaultUntilADeviceTakesThePage) {
  std::byte* memory = managed(kBlock);
  memory[0] = std::byte{1};
  memory[0] = std::byte{2};
  EXPECT_EQ(counters().fault_pages_host, 1U);
  ASSERT_EQ(touch(0, memory, kPage, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(resident(memory, kPage, 0), kPage);
  memory[0] = std::byte{3};
  EXPECT_EQ(counters().fault_pages_host, 2U);
  EXPECT_EQ(resident(memory, kPage, 0), 0U);
}

TEST_F(CpuTouchTest, APrefetchOfAWholeBlockTakesItFromTheHost) {
  std::byte* memory = managed(kBlock);
  std::memset(memory, 1, kBlock);
  ASSERT_EQ(resident(memory, kBlock, UVMSIM_HOST), kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  std::memset(memory, 2, kBlock);
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kBlock);
  EXPECT_EQ(counters().migrated_bytes_to_host, kBlock);
}

TEST_F(CpuTouchTest, ASystemCallTouchesToo) {
  std::byte* memory = managed(kBlock);
  ASSERT_EQ(touch(0, memory, kBlock, UVMSIM_WRITE), UVMSIM_OK);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "managed", 8), 8);
  EXPECT_EQ(read(ends[0], memory, 8), 8);
  close(ends[0]);
  close(ends[1]);
  EXPECT_STREQ(reinterpret_cast<const char*>(memory), "managed");
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), kPage);
}

TEST_F(CpuTouchTest, AReadOfReadMostlyMemoryKeepsTheDevicesCopyAndAStoreDropsIt) {
  std::byte* memory = managed(kBlock);
  ASSERT_EQ(advise(memory, kBlock, Advice::kSetReadMostly, 0), Status::kOk);
  ASSERT_EQ(touch(0, memory, kBlock, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(load(memory), std::byte{0});
  EXPECT_EQ(resident(memory, kPage, 0), kPage);
  EXPECT_EQ(resident(memory, kPage, UVMSIM_HOST), kPage);
  memory[kPage] = std::byte{1};
  EXPECT_EQ(resident(memory + kPage, kPage, 0), 0U);
}

TEST_F(CpuTouchTest, ThreadsAndKernelsTouchTheSamePagesAndNobodyWaitsForEver) {
  std::byte* memory = managed(4 * kBlock);
  const auto increment = [&](std::size_t offset) {
    for (int round = 0; round < 50; ++round) {
      for (std::size_t page = 0; page < 4 * kBlock; page += 64 * kKiB) {
        auto* byte = static_cast<volatile std::byte*>(memory + page + offset);
        *byte = static_cast<std::byte>(static_cast<int>(*byte) + 1);
      }
    }
  };
  std::thread first(increment, 0);
  std::thread second(increment, 1);
  for (int round = 0; round < 50; ++round)
    ASSERT_EQ(touch(0, memory, 4 * kBlock, UVMSIM_READ), UVMSIM_OK);
  first.join();
  second.join();
  for (std::size_t page = 0; page < 4 * kBlock; page += 64 * kKiB) {
    ASSERT_EQ(memory[page], std::byte{50});
    ASSERT_EQ(memory[page + 1], std::byte{50});
  }
}

TEST_F(CpuTouchTest, AForkedChildHoldsNobodyUp) {
  std::byte* memory = managed(kBlock);
  ASSERT_EQ(touch(0, memory, kBlock, UVMSIM_WRITE), UVMSIM_OK);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  memory[0] = std::byte{1};
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  memory[kPage] = std::byte{1};
  EXPECT_EQ(resident(memory, kBlock, UVMSIM_HOST), 2 * kPage);
}

// A process makes its machine only once, so this machine needs another process.
TEST(CpuTouchDeathTest, WhereTheKernelRefusesALineSaysSoAndTheMachineWorks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto use = [] {
    uvm::testing::refuse_system_call(SYS_userfaultfd, EPERM);
    void* memory = nullptr;
    const Status status = Machine::instance().memory().allocate_managed(0, kBlock, 1, &memory);
    if (status == Status::kOk) std::memset(memory, 1, kBlock);
    _exit(status == Status::kOk ? 0 : 1);
  };
  EXPECT_EXIT(use(), ::testing::ExitedWithCode(0),
              "^uvmsim: touches by the CPU are not tracked: the kernel refuses userfaultfd: "
              "Operation not permitted\n$");
}

}  // namespace
}  // namespace uvmsim::test
