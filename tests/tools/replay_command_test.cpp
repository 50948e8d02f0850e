// The program uvmalloc_replay on the simulated device: its exit codes and its output.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "allocator/trace/trace_recorder.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

struct Finished {
  int exit_code = -1;
  std::string output;  // both streams
};

class ReplayCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    folder =
        std::filesystem::temp_directory_path() / ("uvmalloc-replay-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    file = folder / "run.trace";
    ASSERT_EQ(recorder.start(file, {{"simulated", 1024 * kMiB}}), "");
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  static TraceBlock block(std::uint64_t address, std::size_t size_bytes, std::uint64_t stream = 0) {
    return {Facade::kDevice, 0,          reinterpret_cast<const void*>(address),
            size_bytes,      size_bytes, reinterpret_cast<StreamHandle>(stream)};
  }
  void allocate(const TraceBlock& got) { recorder.allocated(recorder.now(), got); }
  void free(const TraceBlock& given) { recorder.freed(recorder.now(), given); }

  Finished replay(const std::string& arguments, const std::string& environment = "") {
    recorder.stop();
    const std::string command = "LD_LIBRARY_PATH=" UVMALLOC_STAND_IN_DIR
                                " UVMSIM_CAPACITY=1G ASAN_OPTIONS=detect_leaks=0 " +
                                environment + " " UVMALLOC_REPLAY_PROGRAM " " + arguments + " 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    Finished finished;
    std::array<char, 4096> piece;
    while (std::size_t count = fread(piece.data(), 1, piece.size(), pipe)) {
      finished.output.append(piece.data(), count);
    }
    const int status = pclose(pipe);
    finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return finished;
  }

  std::filesystem::path folder;
  std::string file;
  TraceRecorder recorder;
};

TEST_F(ReplayCommand, ARandomTraceOnThreeStreamsIsReplayedWithoutMismatch) {
  std::mt19937 random(3);
  std::vector<TraceBlock> live;
  std::uint64_t address = 0;
  std::size_t live_bytes = 0;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 5 < 3) {
      const std::size_t size_bytes =
          random() % 4 == 0 ? 1 + random() % (4 * kMiB) : 1 + random() % 5000;
      if (live_bytes + size_bytes > 200 * kMiB) continue;
      live.push_back(block(address += 8 * kMiB, size_bytes, random() % 3));
      live_bytes += size_bytes;
      allocate(live.back());
      if (random() % 4 == 0) {
        recorder.used(recorder.now(), live.back().address, 0, block(0, 0, random() % 3).stream);
      }
      if (random() % 8 == 0) {
        for (const auto& [from, to] : {std::pair(Place::device(0), Place::host()),
                                       std::pair(Place::host(), Place::device(0))}) {
          recorder.moved(recorder.now(), live.back().address, size_bytes, from, to, nullptr);
        }
      }
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      live_bytes -= live.back().requested_bytes;
      free(live.back());
      live.pop_back();
    }
  }
  const Finished finished = replay(file + " --check --repeat 2");
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  const std::string success = "; 0 allocations failed; 0 mismatches\n";
  const std::size_t first = finished.output.find(success);
  ASSERT_NE(first, std::string::npos) << finished.output;
  EXPECT_NE(finished.output.find(success, first + 1), std::string::npos) << finished.output;
}

TEST_F(ReplayCommand, WithABudgetARequestThatOnlyFailsHereIsAMismatch) {
  allocate(block(0x1000, 64 * kMiB));
  allocate(block(0x5000000, 64 * kMiB));
  const Finished finished = replay(file + " --budget 100MiB");
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  EXPECT_NE(finished.output.find(
                "event 1: a request of 67108864 bytes fails here and succeeded in the trace\n"),
            std::string::npos)
      << finished.output;
}

TEST_F(ReplayCommand, ARequestThatOnlyFailsHereIsFoundByCheckWhateverSetTheBudget) {
  allocate(block(0x1000, 64 * kMiB));
  allocate(block(0x5000000, 64 * kMiB));
  const Finished finished = replay(file + " --check", "UVMALLOC_BUDGET=100MiB");
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  EXPECT_NE(finished.output.find("; 1 allocations failed; 1 mismatches\n"
                                 "event 1: a request of 67108864 bytes fails here"),
            std::string::npos)
      << finished.output;
}

TEST_F(ReplayCommand, ARequestThatOnlySucceedsHereIsFoundByCheck) {
  recorder.out_of_memory(recorder.now(), block(0, 64 * kMiB),
                         {RuntimeError::kOutOfMemory, 2, "NO_MEMORY", "call"});
  const Finished finished = replay(file + " --check");
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  EXPECT_NE(finished.output.find("event 0: a request of 67108864 bytes succeeds here"),
            std::string::npos)
      << finished.output;
}

TEST_F(ReplayCommand, WhatFailsUnderAnotherBudgetIsCountedAndNotCompared) {
  allocate(block(0x1000, 64 * kMiB));
  allocate(block(0x5000000, 64 * kMiB));
  const Finished finished = replay(file + " --check --other-budget 100MiB");
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_NE(finished.output.find("; 1 allocations failed; 0 mismatches\n"), std::string::npos)
      << finished.output;
}

TEST_F(ReplayCommand, HelpSaysWhatEveryOptionMeans) {
  const Finished finished = replay("--help");
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_EQ(finished.output.find("replays a trace on uvmalloc"), 0u) << finished.output;
  for (const char* option :
       {"\n  --check ", "\n  --repeat N ", "\n  --budget SIZE ", "\n  --other-budget SIZE "}) {
    EXPECT_NE(finished.output.find(option), std::string::npos) << option;
  }
}

TEST_F(ReplayCommand, BadInputIsOneLineAndExitCode2) {
  struct Case {
    std::string arguments;
    std::string said;
  };
  const std::string other = folder / "other";
  std::ofstream(other) << "text";
  for (const Case& each :
       {Case{"", "TRACE is required"},
        Case{file + " --repeat none", "--repeat is 'none'; accepted: "},
        Case{file + " --repeat", "--repeat: 1 required N missing"},
        Case{file + " --budget much", "--budget is 'much'; accepted: "},
        Case{file + " --other-budget 1GiB --budget 1GiB", "--budget excludes --other-budget"},
        Case{file + " --what", "The following argument was not expected: --what"},
        Case{other, other + ": at byte 0: this is not a trace of uvmalloc"},
        Case{other + "2", other + "2: No such file or directory"}}) {
    const Finished finished = replay(each.arguments);
    EXPECT_EQ(finished.exit_code, 2) << each.arguments;
    EXPECT_EQ(finished.output.find("uvmalloc_replay: " + each.said), 0u) << finished.output;
    EXPECT_EQ(finished.output.find('\n'), finished.output.size() - 1) << finished.output;
  }
}

TEST_F(ReplayCommand, ATraceOfMoreDevicesThanThereAreIsRefused) {
  const std::string wide = folder / "wide.trace";
  TraceRecorder other;
  ASSERT_EQ(other.start(wide, {{"a", 1}, {"b", 1}}), "");
  other.stop();
  const Finished finished = replay(wide);
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_EQ(finished.output, "uvmalloc_replay: the trace is of 2 devices; this machine has 1\n");
}

}  // namespace
}  // namespace uvm
