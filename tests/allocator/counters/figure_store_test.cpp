// Figures in a file: which of them remain after the process has ended, and which do not.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/counters/figure_store.hpp"
#include "allocator/engine/engine.hpp"
#include "allocator/process/framework_bridge.hpp"
#include "tests/support/allocator_fixture.hpp"
#include "tests/support/fork_fixture.hpp"
#include "tests/support/temporary_folder.hpp"

namespace uvm {
namespace {

using testing::FakeMachine;
using testing::FakeRuntime;
using testing::kMiB;

std::string new_file_name() {
  std::string file = ::testing::TempDir() + "uvmalloc_figures_" + std::to_string(getpid());
  std::filesystem::remove(file);
  return file;
}

constexpr auto kHost = static_cast<std::size_t>(Facade::kHost);
constexpr auto kDevice = static_cast<std::size_t>(Facade::kDevice);

class FiguresInAFile : public testing::ForkTest {
 protected:
  void SetUp() override {}
  void TearDown() override {
    testing::ForkTest::TearDown();
    std::filesystem::remove(file);
  }

  void start_with_file(int devices = 1) {
    machine = std::make_shared<FakeMachine>(devices);
    allocator = std::make_unique<CachingManagedAllocator>(std::make_unique<FakeRuntime>(machine),
                                                          small_configuration(), file);
  }

  // Returns the figures of a process that made an allocator, ran `body` and ended by the signal.
  template <class Body>
  std::optional<Figures> left_by(int signal_number, Body body) {
    const pid_t pid = fork();
    if (pid == 0) {
      const rlimit no_core{0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
      start_with_file(2);
      body();
      std::signal(signal_number, SIG_DFL);
      raise(signal_number);
      _exit(1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal_number);
    return read();
  }
  std::optional<Figures> read() {
    std::string why_not;
    std::optional<Figures> figures = FigureStore::read_file(file, &why_not);
    EXPECT_EQ(why_not, "");
    return figures;
  }

  const std::string file = new_file_name();
};

TEST_F(FiguresInAFile, AreCompleteWhateverEndedTheProcess) {
  for (const int number : {SIGTERM, SIGKILL, SIGSEGV}) {
    std::filesystem::remove(file);
    const std::optional<Figures> figures = left_by(number, [&] {
      allocator->engine().machine.figure_store.describe("about");
      void* kept = host(8 * kMiB);
      for (int round = 0; round < 3; ++round) allocator->free(device(4 * kMiB));
      std::thread([&] { allocator->free(device(16 * kMiB)); }).join();
      allocator->allocate(Facade::kDevice, 1, 2 * kMiB);
      to_device(kept);
      FrameworkBridge(*allocator).note_copy(CopyReason::kSmallBlock, 100);
      allocator->engine().machine.figure_store.unmanaged_host().count(2, 300);
    });
    ASSERT_TRUE(figures);
    EXPECT_EQ(figures->about, "about");
    EXPECT_EQ(figures->facades[kHost].allocations, 1u);
    EXPECT_EQ(figures->facades[kHost].live_bytes, 0u) << "the block has moved";
    EXPECT_EQ(figures->facades[kDevice].allocations, 6u);
    EXPECT_EQ(figures->facades[kDevice].allocated_bytes, 38 * kMiB);
    EXPECT_EQ(figures->facades[kDevice].live_bytes, 10 * kMiB);
    EXPECT_EQ(figures->facades[kDevice].peak_bytes, 18 * kMiB) << "of both devices";
    EXPECT_EQ(figures->facades[kDevice].cache_hits, 3u);
    EXPECT_EQ(figures->peak_bytes, 24 * kMiB);
    EXPECT_EQ(figures->totals.moves.host_to_device, 1u);
    EXPECT_EQ(figures->totals.moves.bytes, 8 * kMiB);
    EXPECT_EQ(figures->totals.moves.copies[0].bytes, 100u);
    EXPECT_EQ(figures->unmanaged_host_allocations, 2u);
    EXPECT_EQ(figures->unmanaged_host_bytes, 300u);
    EXPECT_EQ(figures->calls.at("describe"), 2u) << "calls from before the store count too";
    EXPECT_EQ(figures->threads_left_out, 0u);
  }
}

TEST_F(FiguresInAFile, AreThoseThatTheProcessItselfReports) {
  start_with_file();
  void* kept = host(8 * kMiB);
  allocator->free(device(4 * kMiB));
  const Figures own = allocator->inspection().figures();
  const std::optional<Figures> read_back = read();
  ASSERT_TRUE(read_back);
  for (std::size_t facade = 0; facade < kFacades; ++facade) {
    EXPECT_EQ(own.facades[facade].allocations, read_back->facades[facade].allocations);
    EXPECT_EQ(own.facades[facade].allocated_bytes, read_back->facades[facade].allocated_bytes);
    EXPECT_EQ(own.facades[facade].live_bytes, read_back->facades[facade].live_bytes);
    EXPECT_EQ(own.facades[facade].peak_bytes, read_back->facades[facade].peak_bytes);
    EXPECT_EQ(own.facades[facade].cache_hits, read_back->facades[facade].cache_hits);
  }
  EXPECT_EQ(own.peak_bytes, read_back->peak_bytes);
  EXPECT_EQ(own.calls, read_back->calls);
  allocator->free(kept);
}

TEST_F(FiguresInAFile, AForkedChildCountsInItsOwnMemory) {
  start_with_file();
  void* kept = host(4 * kMiB);
  EXPECT_EQ(fork_and_run([&] {
              FrameworkBridge(*allocator).note_copy(CopyReason::kSmallBlock, 100);
              allocator->engine().machine.figure_store.unmanaged_host().count(1, 1);
              return allocator->inspection().figures().totals.moves.copies[0].count == 1 ? 0 : 1;
            }),
            0);
  const std::optional<Figures> figures = read();
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->totals.moves.copies[0].count, 0u);
  EXPECT_EQ(figures->unmanaged_host_allocations, 0u);
  EXPECT_EQ(figures->facades[kHost].live_bytes, 4 * kMiB);
  allocator->free(kept);
}

TEST_F(FiguresInAFile, SayHowManyThreadsFoundNoRoom) {
  constexpr std::size_t kMore = 3;
  FigureStore store(kFacades, file);
  std::vector<FigureStore::ThreadCounts> taken;
  for (std::size_t thread = 0; thread < 64 + kMore; ++thread) {
    taken.push_back(store.take_thread_counts());
    taken.back()[0].allocated(SizeClass::kLarge, kMiB, kMiB, false);
  }
  const std::optional<Figures> figures = read();
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->threads_left_out, kMore);
  EXPECT_EQ(figures->facades[kHost].live_bytes, 64 * kMiB);
}

TEST_F(FiguresInAFile, AThreadThatEndsMakesRoomForTheNext) {
  FigureStore store(kFacades, file);
  for (int thread = 0; thread < 1000; ++thread) {
    FigureStore::ThreadCounts thread_counts = store.take_thread_counts();
    EXPECT_EQ(thread_counts[0].live(ThreadCounters::kAll).bytes, 0) << "of the thread before";
    thread_counts[0].allocated(SizeClass::kLarge, kMiB, kMiB, false);
  }
  const std::optional<Figures> figures = read();
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->threads_left_out, 0u);
}

TEST_F(FiguresInAFile, AreInOrdinaryMemoryWhereTheFileCannotBeHad) {
  const FigureStore nowhere(kFacades, "/nowhere/figures");
  EXPECT_FALSE(nowhere.is_in_file());
  std::ofstream(file) << "another program's";
  const FigureStore taken(kFacades, file);
  EXPECT_FALSE(taken.is_in_file());
}

TEST_F(FiguresInAFile, AreNotKeptThereBeyondALimitOnTheSizeOfFiles) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{512, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const FigureStore store(kFacades, file);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(store.is_in_file());
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(FiguresInAFile, AreNotTakenFromAFileOfAnotherKind) {
  std::string why_not;
  EXPECT_FALSE(FigureStore::read_file("/nowhere/figures", &why_not));
  const testing::TemporaryFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(FigureStore::read_file(pipe, &why_not)) << "it would wait for a writer";
  const std::string huge = folder.path() + "/huge";
  std::ofstream(huge) << "uvmalloc-fig-1";
  std::filesystem::resize_file(huge, std::uintmax_t{1} << 40);
  EXPECT_FALSE(FigureStore::read_file(huge, &why_not)) << "no such memory";
  EXPECT_EQ(why_not, "it cannot be read");
  { const FigureStore store(kFacades, file); }
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_FALSE(FigureStore::read_file(file, &why_not));
  EXPECT_EQ(why_not, "it was not written by this version of uvmalloc");
  for (const char* content : {"", "uvmalloc-fig-1"}) {
    std::ofstream(file, std::ios::trunc) << content;
    EXPECT_FALSE(FigureStore::read_file(file, &why_not));
  }
}

}  // namespace
}  // namespace uvm
