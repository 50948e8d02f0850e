// What addresses guarantee: views, alignment, reuse, fork, and crashes like the real machine's.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "machine_test.hpp"

namespace uvmsim::test {
namespace {

using AddressSpaceTest = MachineTest;

// Returns the exit code of a child that runs `body`, or 128 + signal.
int run_in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Asks the kernel, because a touch could raise a signal.
bool is_mapped(const void* address) {
  unsigned char present = 0;
  void* page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) & ~(kPage - 1));
  return mincore(page, kPage, &present) == 0;
}

TEST_F(AddressSpaceTest, LargeAllocationsAreAlignedTo2MiB) {
  for (const std::size_t bytes : {kBlock, kBlock + 1, 5 * kBlock}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(managed(bytes)) % kBlock, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device_memory(0, bytes)) % kBlock, 0U);
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(managed(1)) % kPage, 0U);
}

TEST_F(AddressSpaceTest, ManagedMemoryStartsAsZerosAlsoWhenItsAddressIsUsedAgain) {
  for (const std::size_t bytes : {kPage, 3 * kBlock}) {
    std::byte* first = managed(bytes);
    std::memset(first, 0xff, bytes);
    free(first);
    std::byte* second = managed(bytes);
    EXPECT_EQ(second, first);
    for (std::size_t i = 0; i < bytes; i += kPage) ASSERT_EQ(second[i], std::byte{0}) << i;
    EXPECT_EQ(resident(second, bytes, 0), 0U);
  }
}

TEST_F(AddressSpaceTest, DeviceViewIsGivenForDeviceMemoryOnlyWithinItsAllocation) {
  std::byte* memory = device_memory(0, 3 * kBlock);
  auto* view = static_cast<std::byte*>(uvmsim_device_view(memory));
  ASSERT_NE(view, nullptr);
  std::memset(view, 7, 3 * kBlock);
  EXPECT_EQ(uvmsim_device_view(memory + kBlock), view + kBlock);
  int local = 0;
  EXPECT_EQ(uvmsim_device_view(&local), nullptr);
  EXPECT_EQ(uvmsim_device_view(memory + 3 * kBlock), nullptr);
}

TEST_F(AddressSpaceTest, PinnedMemoryIsItsOwnView) {
  void* memory = nullptr;
  ASSERT_EQ(machine().memory().allocate_pinned(0, 100, 0, &memory), Status::kOk);
  std::memset(memory, 1, 100);
  EXPECT_EQ(uvmsim_device_view(memory), memory);
  EXPECT_EQ(touch(0, memory, 100, UVMSIM_WRITE), UVMSIM_OK);
  EXPECT_EQ(counters().remote_access_bytes, 100U);
  EXPECT_EQ(machine().memory().free(memory, Wait::kYes), Status::kInvalidValue);
  EXPECT_EQ(machine().memory().free_pinned(memory), Status::kOk);
  EXPECT_EQ(uvmsim_device_view(memory), nullptr);
}

TEST_F(AddressSpaceTest, KernelsCannotReachPlainHostMemory) {
  int local = 0;
  EXPECT_EQ(touch(0, &local, sizeof local, UVMSIM_READ), UVMSIM_ERROR_ADDRESS);
  ASSERT_EQ(machine().memory().register_host(0, &local, sizeof local, 0), Status::kOk);
  EXPECT_EQ(touch(0, &local, sizeof local, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(machine().memory().register_host(0, &local, 1, 0),
            Status::kHostMemoryAlreadyRegistered);
  EXPECT_EQ(machine().memory().unregister_host(&local), Status::kOk);
  EXPECT_EQ(machine().memory().unregister_host(&local), Status::kHostMemoryNotRegistered);
}

TEST_F(AddressSpaceTest, KernelsReachAPeersMemoryOnlyWithPeerAccess) {
  const std::byte* memory = device_memory(1, kBlock);
  EXPECT_EQ(touch(0, memory, 10, UVMSIM_READ), UVMSIM_ERROR_ADDRESS);
  ASSERT_EQ(machine().memory().enable_peer_access(0, 1), Status::kOk);
  EXPECT_EQ(touch(0, memory, 10, UVMSIM_READ), UVMSIM_OK);
  EXPECT_EQ(counters().remote_access_bytes, 10U);
}

TEST_F(AddressSpaceTest, InteriorAndForeignAddressesAreNotFreed) {
  std::byte* memory = managed(kBlock);
  EXPECT_EQ(machine().memory().free(memory + kPage, Wait::kYes), Status::kInvalidValue);
  int local = 0;
  EXPECT_EQ(machine().memory().free(&local, Wait::kYes), Status::kInvalidValue);
  free(memory);
  EXPECT_EQ(machine().memory().free(memory, Wait::kYes), Status::kInvalidValue);
}

TEST_F(AddressSpaceTest, CopiesBeyondAnAllocationAreRefused) {
  std::byte* memory = device_memory(0, kBlock);
  std::vector<std::byte> host(2 * kBlock);
  const Copy copy{.to = memory, .from = host.data(), .width_bytes = kBlock + 1};
  EXPECT_EQ(machine().work().copy(0, nullptr, copy, Wait::kYes), Status::kInvalidValue);
}

class AddressSpaceDeathTest : public MachineTest {
 protected:
  // Death tests run in a new process image, because a forked child of this one has no machine.
  static void SetUpTestSuite() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(AddressSpaceDeathTest, AHostTouchOfDeviceMemoryCrashes) {
  volatile std::byte* memory = device_memory(0, kBlock);
  EXPECT_DEATH(memory[0] = std::byte{1}, "");
  EXPECT_DEATH((void)(memory[0] == std::byte{1}), "");
}

TEST_F(AddressSpaceDeathTest, AHostTouchOfFreedManagedMemoryCrashes) {
  volatile std::byte* memory = managed(kBlock);
  memory[0] = std::byte{1};
  free(const_cast<std::byte*>(memory));
  EXPECT_DEATH(memory[0] = std::byte{1}, "");
}

TEST_F(AddressSpaceTest, AForkedChildHasNeitherTheMemoryNorTheMachine) {
  std::byte* memory = managed(kBlock);
  const std::byte* view = static_cast<std::byte*>(uvmsim_device_view(memory));
  std::byte* device = device_memory(0, kBlock);
  memory[0] = std::byte{9};
  const int code = run_in_child([&] {
    if (is_mapped(memory) || is_mapped(view) || is_mapped(device)) return 1;
    if (!Machine::lost_in_fork()) return 2;
    if (uvmsim_device_count() != 0 || uvmsim_device_view(memory) != nullptr) return 3;
    std::size_t bytes = 0;
    return uvmsim_residency(memory, kBlock, 0, &bytes) == UVMSIM_ERROR_INVALID ? 0 : 4;
  });
  EXPECT_EQ(code, 0);
  EXPECT_FALSE(Machine::lost_in_fork());
  EXPECT_EQ(memory[0], std::byte{9}) << "the parent keeps everything";
}

}  // namespace
}  // namespace uvmsim::test

namespace {

// Runs before anything makes the machine.
const bool environment_is_set = [] {
  setenv("UVMSIM_DEVICES", "2", 1);
  unsetenv("UVMSIM_CAPACITY");
  return true;
}();

}  // namespace
