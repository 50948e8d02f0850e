#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <uvmalloc/groups.hpp>
#include <uvmalloc/use_range.hpp>
#include "allocator/engine/engine.hpp"
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

  // Without its thread the allocator looks at the other programs only when the test calls look().
  void start(Policy policy = Policy::kAuto, bool with_thread = false) {
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
    if (!with_thread) allocator->engine().device_sharing.stop();
  }
  void look() { allocator->engine().device_sharing.look(); }
  sharing::SharingFigures figures() const {
    return allocator->inspection().sharing_figures().at(0);
  }

  // Starts the other program, which launches kernels until stop_other(). Returns after the first.
  void start_other(std::size_t held_bytes) {
    other = fork();
    if (other != 0) {
      await_kernels_of_other(1);
      return;
    }
    std::string why;
    const auto turns = SharedTurns::join(folder, "fake-0", TurnRules::for_device(60 * kMiB), &why);
    if (turns == nullptr) _exit(1);
    turns->set_held_bytes(held_bytes);
    while (true) {
      turns->before_kernel([] {});
      ++*kernels_of_other;
    }
  }
  void stop_other() {
    if (other <= 0) return;
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
    other = -1;
  }
  // Waits for another program or thread.
  template <class Condition>
  static bool soon(Condition condition) {
    const auto last = std::chrono::steady_clock::now() + 20s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > last) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void await_kernels_of_other(int more) {
    const int before = *kernels_of_other;
    ASSERT_TRUE(soon([&] { return *kernels_of_other >= before + more; }));
  }
  void kernel(char* block) {
    EXPECT_TRUE(allocator->kernel_uses().note(block, 2 * kMiB, stream(1), live::kReads));
  }

  const testing::TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  std::atomic<int>* kernels_of_other = nullptr;
  pid_t other = -1;
};

TEST_F(DeviceSharingTest, AThreadTellsTheOtherProgramsHowMuchMemoryIsHeld) {
  start(Policy::kAuto, true);
  device(2 * kMiB, stream(1));
  EXPECT_TRUE(soon([&] { return figures().held_bytes == 2 * kMiB; }));
}

TEST_F(DeviceSharingTest, AProgramAloneAndTwoThatFitPlanNothing) {
  start();
  device(2 * kMiB, stream(1));
  look();
  EXPECT_EQ(figures().held_bytes, 2 * kMiB);
  start_other(20 * kMiB);
  look();
  EXPECT_EQ(figures().held_bytes, 22 * kMiB);
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(figures().programs, 2u);
  EXPECT_EQ(figures().turns, 0u);
}

TEST_F(DeviceSharingTest, CachedMemoryIsGivenBackBeforeTurnsBegin) {
  start();
  char* block = device(40 * kMiB, stream(1));
  device(2 * kMiB, stream(1));
  allocator->free(block);
  look();
  EXPECT_EQ(figures().held_bytes, 42 * kMiB);
  start_other(40 * kMiB);
  look();
  EXPECT_EQ(figures().held_bytes, 42 * kMiB);
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(figures().waited_ns, 0u);
}

TEST_F(DeviceSharingTest, CachedMemoryIsGivenBackEachTimeTheDeviceIsCrowdedAndOneLineSaysSo) {
  start();
  ::testing::internal::CaptureStderr();
  device(40 * kMiB, stream(1));
  for (int crowd = 0; crowd < 2; ++crowd) {
    char* cached = device(10 * kMiB, stream(1));
    allocator->free(cached);
    look();
    EXPECT_EQ(figures().held_bytes, 50 * kMiB);
    start_other(40 * kMiB);
    look();
    EXPECT_EQ(figures().held_bytes, 80 * kMiB) << crowd;
    EXPECT_TRUE(allocator->kernel_uses().wanted());
    stop_other();
    look();
    EXPECT_EQ(figures().programs, 1u);
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
  look();
  ASSERT_TRUE(allocator->kernel_uses().wanted());
  kernel(block);  // runs after the other program's turn
  const int before = *kernels_of_other;
  const std::uint64_t evicted = allocator->inspection().live_figures().evicted_pages;
  ASSERT_TRUE(soon([&] {
    kernel(block);
    // The pages may have left for the other's turn before they were counted: then they leave again.
    return *kernels_of_other > before + 10 &&
           allocator->inspection().live_figures().evicted_pages > evicted;
  }));
  EXPECT_GT(figures().waited_ns, 0u);
  EXPECT_GT(figures().turns, 0u);
}

TEST_F(DeviceSharingTest, AProgramWhoseGroupsSleepHoldsNothingAtOnce) {
  start();
  char* block = device(40 * kMiB, stream(1));
  look();
  EXPECT_EQ(figures().held_bytes, 40 * kMiB);
  const auto groups = Groups::of(*allocator);
  const GroupNumber group = groups->open("llm");
  groups->add(group, block);
  groups->sleep(group, {0, stream(1)});
  EXPECT_EQ(figures().held_bytes, 0u);
}

TEST_F(DeviceSharingTest, AProgramThatIsKilledInItsTurnDelaysNobody) {
  start();
  char* block = device(40 * kMiB, stream(1));
  start_other(40 * kMiB);
  look();
  ASSERT_TRUE(allocator->kernel_uses().wanted());
  await_kernels_of_other(2);  // the second one began after look(), in a turn
  stop_other();
  kernel(block);
  EXPECT_EQ(figures().programs, 1u);
}

TEST_F(DeviceSharingTest, AFreeNeverWaitsForATurn) {
  start();
  char* block = device(40 * kMiB, stream(1));
  start_other(40 * kMiB);
  look();
  ASSERT_TRUE(allocator->kernel_uses().wanted());
  await_kernels_of_other(2);  // the second one began after look(), in a turn
  const std::uint64_t waited = figures().waited_ns;
  EXPECT_TRUE(allocator->record_use(block, 0, stream(2)));
  allocator->free(block);
  EXPECT_EQ(figures().waited_ns, waited);
}

TEST_F(DeviceSharingTest, AForkedChildCanDestroyTheAllocator) {
  start(Policy::kAuto, true);
  ASSERT_EQ(figures().programs, 1u);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    allocator.reset();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "it hangs, if it ended by SIGALRM";
}

TEST_F(DeviceSharingTest, WithoutAPlanThereAreNoTurns) {
  start(Policy::kDriver);
  EXPECT_EQ(figures().programs, 0u);
  device(40 * kMiB, stream(1));
  start_other(40 * kMiB);
  look();
  EXPECT_FALSE(allocator->kernel_uses().wanted());
  EXPECT_EQ(figures().programs, 0u);
}

}  // namespace
}  // namespace uvm
