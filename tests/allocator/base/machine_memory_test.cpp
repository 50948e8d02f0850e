#include "allocator/base/machine_memory.hpp"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <filesystem>
#include <fstream>

namespace uvm {
namespace {

class MachineMemoryTest : public ::testing::Test {
 protected:
  MachineMemoryTest()
      : root_(std::filesystem::temp_directory_path() / ("uvm_memory_" + std::to_string(getpid()))) {
    write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 500000 kB\n");
  }
  ~MachineMemoryTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::size_t available() { return available_host_bytes(root_.string() + "/"); }

  std::filesystem::path root_;
};

TEST_F(MachineMemoryTest, WithoutAControlGroupItIsMemAvailable) {
  EXPECT_EQ(available(), 500000u << 10);
}

TEST_F(MachineMemoryTest, TheTightestGroupAboveCaps) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
  write("sys/fs/cgroup/outer/memory.max", "300000000\n");
  write("sys/fs/cgroup/outer/memory.current", "100000000\n");
  EXPECT_EQ(available(), 200000000u);
}

TEST_F(MachineMemoryTest, Version1GroupsCapToo) {
  write("proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(available(), 0u) << "beyond the limit already";
}

TEST_F(MachineMemoryTest, AnUnlimitedVersion1GroupCapsNothing) {
  write("proc/self/cgroup", "4:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(available(), 500000u << 10);
}

TEST_F(MachineMemoryTest, IdlePageCacheOfAGroupDoesNotCountAsItsUse) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "300000000\n");
  write("sys/fs/cgroup/job/memory.current", "250000000\n");
  write("sys/fs/cgroup/job/memory.stat",
        "anon 90000000\nfile 160000000\ninactive_file 120000000\n");
  EXPECT_EQ(available(), 170000000u);
  write("sys/fs/cgroup/job/memory.stat", "inactive_file 990000000\n");
  EXPECT_EQ(available(), 300000000u) << "figures that do not fit together";
}

TEST_F(MachineMemoryTest, IdlePageCacheOfAVersion1GroupDoesNotCountEither) {
  write("proc/self/cgroup", "4:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 3000\n");
  EXPECT_EQ(available(), 4000u);
}

TEST_F(MachineMemoryTest, WithoutAReadableFileTheKernelSaysWhatIsUnused) {
  std::filesystem::remove(root_ / "proc/meminfo");
  struct sysinfo machine = {};
  ASSERT_EQ(sysinfo(&machine), 0);
  EXPECT_GT(available(), 0u);
  EXPECT_LE(available(), machine.totalram * machine.mem_unit);
  write("proc/meminfo", "MemTotal: 1000000 kB\n");
  EXPECT_GT(available(), 0u) << "a kernel that does not tell MemAvailable";
}

TEST_F(MachineMemoryTest, GroupsCapWhatTheKernelSaysToo) {
  std::filesystem::remove(root_ / "proc/meminfo");
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "5000\n");
  write("sys/fs/cgroup/job/memory.current", "1000\n");
  EXPECT_EQ(available(), 4000u);
}

TEST_F(MachineMemoryTest, NothingAvailableIsNotUnknown) {
  write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 0 kB\n");
  EXPECT_EQ(available(), 0u);
}

TEST(MachineMemory, ThisMachineHasSome) {
  EXPECT_GT(available_host_bytes(), 0u);
}

TEST_F(MachineMemoryTest, AGroupIsSlowedDownAboveItsHighMark) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "max\n");
  write("sys/fs/cgroup/job/memory.high", "300000000\n");
  write("sys/fs/cgroup/job/memory.current", "100000000\n");
  EXPECT_EQ(available(), 200000000u);
  write("sys/fs/cgroup/job/memory.max", "250000000\n");
  EXPECT_EQ(available(), 150000000u);
  EXPECT_EQ(host_memory_figures(root_.string() + "/").total_bytes, 250000000u);
}

TEST_F(MachineMemoryTest, TheStallIsTheTimeOfSomeProgram) {
  const auto stall = [&] { return memory_stall(root_.string() + "/").count(); };
  EXPECT_EQ(stall(), 0) << "the kernel does not say";
  write("proc/pressure/memory",
        "some avg10=0.00 avg60=0.12 avg300=0.00 total=31415\n"
        "full avg10=0.00 avg60=0.10 avg300=0.00 total=2718\n");
  EXPECT_EQ(stall(), 31415);
}

}  // namespace
}  // namespace uvm
