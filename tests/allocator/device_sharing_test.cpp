#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <uvmalloc/use_range.hpp>
#include "hints/sharing/shared_turns.hpp"

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/temporary_folder.hpp"

namespace uvm {
namespace {

using namespace std::chrono_literals;
using sharing::SharedTurns;
using sharing::TurnRules;
using testing::AllocatorTest;
using testing::FakeMachine;
using testing::FakeRuntime;
using testing::kMiB;
using testing::stream;

// A device of 64 MiB. A forked child is the other program; it reports how much memory it holds.
class DeviceSharingTest : public AllocatorTest {
 protected:
  void SetUp() override {
    void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    kernels_of_other = new (memory) std::atomic<int>(0);
  }
  void TearDown() override {
    stop_other();
    allocator.reset();
    munmap(kernels_of_other, 4096);
  }

  void start(Policy policy = Policy::kAuto) {
    allocator.reset();
    machine = std::make_shared<FakeMachine>();
    machine->total_bytes = 64 * kMiB;
    Configuration configuration = without_thread_caches();
    configuration.policy = policy;
    configuration.share = true;
    configuration.share_folder = folder;
    configuration.span_bytes = 256 * kMiB;
    allocator = std::make_unique<CachingManagedAllocator>(std::make_unique<FakeRuntime>(machine),
                                                          configuration);
  }

  // Starts the other program, which launches kernels until stop_other().
  void start_other(std::size_t held_bytes) {
    other = fork();
    if (other != 0) return;
    std::string why;
    const auto turns = SharedTurns::join(folder, "fake-0", TurnRules::for_device(60 * kMiB), &why);
    if (turns == nullptr) _exit(1);
    turns->set_held_bytes(held_bytes);
    while (true) {
      turns->before_kernel([] {});
      ++*kernels_of_other;
      std::this_thread::sleep_for(1ms);
    }
  }
  void stop_other() {
    if (other <= 0) return;
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
    other = -1;
  }
  template <class Condition>
  static bool soon(Condition condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
  void kernel(char* block) {
    EXPECT_TRUE(allocator->kernel_uses().note(block, 2 * kMiB, stream(1), live::kReads));
  }

  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  std::atomic<int>* kernels_of_other = nullptr;
  pid_t other = -1;
};

TEST_F(DeviceSharingTest, AProgramAloneAndTwoThatFitPlanNothing) {
  start();
  device(2 * kMiB, stream(1));
  ASSERT_TRUE(
      soon([&] { return allocator->inspection().sharing_figures().at(0).held_bytes == 2 * kMiB; }));
  start_other(20 * kMiB);
  ASSERT_TRUE(
      soon([&] { return allocator->inspection().sharing_figures()[0].held_bytes == 22 * kMiB; }));
  // The watching thread publishes held bytes before it decides about turns, so the second published
  // change proves that the first decision was made.
  for (const std::size_t held_bytes : {24 * kMiB, 26 * kMiB}) {
    device(2 * kMiB, stream(1));
    ASSERT_TRUE(soon(
        [&] { return allocator->inspection().sharing_figures()[0].held_bytes == held_bytes; }));
  }
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(allocator->inspection().sharing_figures()[0].programs, 2u);
  EXPECT_EQ(allocator->inspection().sharing_figures()[0].turns, 0u);
}

TEST_F(DeviceSharingTest, CachedMemoryIsGivenBackBeforeTurnsBegin) {
  start();
  char* block = device(40 * kMiB, stream(1));
  device(2 * kMiB, stream(1));
  allocator->free(block);
  ASSERT_TRUE(
      soon([&] { return allocator->inspection().sharing_figures()[0].held_bytes == 42 * kMiB; }));
  start_other(40 * kMiB);
  ASSERT_TRUE(
      soon([&] { return allocator->inspection().sharing_figures()[0].held_bytes == 42 * kMiB; }));
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(allocator->inspection().sharing_figures()[0].waited_ns, 0u);
}

TEST_F(DeviceSharingTest, CachedMemoryIsGivenBackEachTimeTheDeviceIsCrowdedAndOneLineSaysSo) {
  start();
  ::testing::internal::CaptureStderr();
  device(40 * kMiB, stream(1));
  const auto held_soon = [&](std::size_t bytes) {
    return soon([&] { return allocator->inspection().sharing_figures()[0].held_bytes == bytes; });
  };
  for (int crowd = 0; crowd < 2; ++crowd) {
    char* cached = device(10 * kMiB, stream(1));
    allocator->free(cached);
    EXPECT_TRUE(held_soon(50 * kMiB));
    start_other(40 * kMiB);
    EXPECT_TRUE(held_soon(80 * kMiB)) << crowd;
    EXPECT_TRUE(soon([&] { return allocator->kernel_uses().wanted(); }));
    stop_other();
    EXPECT_TRUE(soon([&] { return allocator->inspection().sharing_figures()[0].programs == 1; }));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::size_t line = said.find("they take turns");
  EXPECT_NE(line, std::string::npos);
  EXPECT_EQ(said.find("they take turns", line + 1), std::string::npos);
}

TEST_F(DeviceSharingTest, KernelsWaitForTheirTurnAndPagesLeaveBeforeItPasses) {
  start();
  char* block = device(40 * kMiB, stream(1));
  start_other(40 * kMiB);
  ASSERT_TRUE(soon([&] { return allocator->kernel_uses().wanted(); }));
  kernel(block);  // runs after the other program's turn
  EXPECT_GT(*kernels_of_other, 0);
  const int before = *kernels_of_other;
  const std::uint64_t evicted = allocator->inspection().live_figures().evicted_pages;
  ASSERT_TRUE(soon([&] {
    kernel(block);
    return *kernels_of_other > before + 10;
  }));
  EXPECT_GT(allocator->inspection().live_figures().evicted_pages, evicted);
  EXPECT_GT(allocator->inspection().sharing_figures()[0].waited_ns, 0u);
  EXPECT_GT(allocator->inspection().sharing_figures()[0].turns, 0u);
}

TEST_F(DeviceSharingTest, AProgramThatIsKilledInItsTurnDelaysNobody) {
  start();
  char* block = device(40 * kMiB, stream(1));
  start_other(40 * kMiB);
  ASSERT_TRUE(soon([&] { return allocator->kernel_uses().wanted(); }));
  ASSERT_TRUE(soon([&] { return *kernels_of_other > 10; }));
  stop_other();
  kernel(block);
  EXPECT_EQ(allocator->inspection().sharing_figures()[0].programs, 1u);
}

TEST_F(DeviceSharingTest, AFreeNeverWaitsForATurn) {
  start();
  char* block = device(40 * kMiB, stream(1));
  start_other(40 * kMiB);
  ASSERT_TRUE(soon([&] { return allocator->kernel_uses().wanted(); }));
  ASSERT_TRUE(soon([&] { return *kernels_of_other > 10; }));
  const std::uint64_t waited = allocator->inspection().sharing_figures()[0].waited_ns;
  EXPECT_TRUE(allocator->record_use(block, 0, stream(2)));
  allocator->free(block);
  EXPECT_EQ(allocator->inspection().sharing_figures()[0].waited_ns, waited);
}

TEST_F(DeviceSharingTest, AForkedChildCanDestroyTheAllocator) {
  start();
  ASSERT_TRUE(soon([&] { return allocator->inspection().sharing_figures().at(0).programs == 1u; }));
  const pid_t child = fork();
  if (child == 0) {
    allocator.reset();
    _exit(0);
  }
  int status = -1;
  EXPECT_TRUE(soon([&] { return waitpid(child, &status, WNOHANG) == child; })) << "it hangs";
  if (status == -1) kill(child, SIGKILL);
  EXPECT_EQ(status, 0);
}

TEST_F(DeviceSharingTest, WithoutAPlanThereAreNoTurns) {
  start(Policy::kDriver);
  EXPECT_EQ(allocator->inspection().sharing_figures().at(0).programs, 0u);
  device(40 * kMiB, stream(1));
  start_other(40 * kMiB);
  ASSERT_TRUE(soon([&] { return *kernels_of_other > 10; })) << "the other alone has joined";
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(allocator->inspection().sharing_figures().at(0).programs, 0u);
}

}  // namespace
}  // namespace uvm
