// The recorder's trace with kernels becomes a recording for the simulated machine.
#include "tools/machine_replay/trace_recording.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/trace/trace_recorder.hpp"
#include "sim/engine/units.hpp"
#include "sim/replay/replay_machine.hpp"

#include "tools/machine_replay/moved_memory.hpp"

namespace uvm::machine_replay {
namespace {

using uvmsim::kBlockBytes;
using uvmsim::kPagesPerBlock;
using uvmsim::replay::EventKind;
using uvmsim::replay::Recording;

constexpr std::uint64_t kFirst = 16 * kBlockBytes;
constexpr std::uint64_t kSecond = 40 * kBlockBytes;

class TraceRecording : public ::testing::Test {
 protected:
  void SetUp() override {
    file = std::filesystem::temp_directory_path() /
           ("uvmalloc-recording-" + std::to_string(getpid()) + ".trace");
    ASSERT_EQ(recorder.start(file, {{"simulated", 64 * kBlockBytes}}), "");
  }
  void TearDown() override { std::filesystem::remove(file); }

  static void* at(std::uint64_t address) { return reinterpret_cast<void*>(address); }

  void allocate(std::uint64_t address, std::size_t size_bytes) {
    recorder.allocated(recorder.now(), block(address, size_bytes));
  }
  void free(std::uint64_t address, std::size_t size_bytes) {
    recorder.freed(recorder.now(), block(address, size_bytes));
  }
  static TraceBlock block(std::uint64_t address, std::size_t size_bytes) {
    return {Facade::kDevice, 0, at(address), size_bytes, size_bytes, at(7)};
  }
  void kernel(std::uint64_t operations, std::uint8_t type, const std::vector<TracedRange>& ranges) {
    recorder.kernel_started(recorder.now(), 0, at(7), operations, type, ranges);
  }

  Trace read() {
    recorder.stop();
    return read_trace(file);
  }
  Recording made() {
    recorder.stop();
    return recording_of(read_trace(file));
  }
  std::string refusal() {
    try {
      made();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

  std::string file;
  TraceRecorder recorder;
};

TEST_F(TraceRecording, AKernelHasItsTouchesAsPagesOfTheBlocksThatTheTraceNames) {
  allocate(kSecond, kBlockBytes);
  allocate(kFirst, 2 * kBlockBytes);
  kernel(1000, 3, {{at(kFirst + kBlockBytes), kBlockBytes, 1}, {at(kSecond + 8192), 4096, 3}});
  const Recording recording = made();
  EXPECT_EQ(recording.block_addresses,
            (std::vector<std::uint64_t>{kFirst, kFirst + kBlockBytes, kSecond}));
  ASSERT_EQ(recording.events.size(), 3U);
  const auto& event = recording.events[2];
  EXPECT_EQ(event.kind, EventKind::kKernel);
  EXPECT_EQ(event.amount, 1000U);
  EXPECT_EQ(event.type, uvmsim::OperationType::kFloat16);
  ASSERT_EQ(event.touch_count, 2U);
  const auto& first = recording.touches[event.first_touch];
  EXPECT_EQ(first.pages.first, kPagesPerBlock);
  EXPECT_EQ(first.pages.last, 2 * kPagesPerBlock);
  const auto& second = recording.touches[event.first_touch + 1];
  EXPECT_EQ(second.pages.first, 2 * kPagesPerBlock + 2);
  EXPECT_EQ(second.pages.last, 2 * kPagesPerBlock + 3);
  EXPECT_EQ(second.access, 3);
}

TEST_F(TraceRecording, MemoryThatTheTraceDoesNotKnowCountsItsBytesAlone) {
  allocate(kFirst, kBlockBytes);
  free(kFirst, kBlockBytes);
  kernel(0, 1, {{at(kFirst), 4096, 3}, {at(kSecond), 100, 1}});
  const Recording recording = made();
  EXPECT_EQ(recording.unknown_touches, 2U);
  EXPECT_EQ(recording.events.back().touch_count, 0U);
  EXPECT_EQ(recording.events.back().other_bytes, 2 * 4096U + 100U);
}

TEST_F(TraceRecording, HintsCopiesOrderAndMarksComeAlong) {
  allocate(kFirst, kBlockBytes);
  recorder.advised(recorder.now(), 0, at(kFirst), kBlockBytes, Advice::kSetReadMostly,
                   Place::device(0));
  recorder.prefetched(recorder.now(), 0, at(kFirst), kBlockBytes, Place::device(0), at(9));
  recorder.discarded(recorder.now(), 0, at(kFirst + 1), 4096 + 4095, at(9));
  recorder.mark("step 1");
  kernel(4096, kTraceCopyToDevice, {{at(kFirst), 4096, 2}});
  recorder.signalled(recorder.now(), 0, at(9), at(0x50));
  recorder.waited(recorder.now(), 0, at(7), at(0x50), TraceWait::kStreamForSignal);
  recorder.waited(recorder.now(), 0, nullptr, nullptr, TraceWait::kHostForDevice);
  const Recording recording = made();
  std::vector<EventKind> kinds;
  for (const auto& event : recording.events) kinds.push_back(event.kind);
  EXPECT_EQ(kinds,
            (std::vector{EventKind::kAllocate, EventKind::kAdvise, EventKind::kPrefetch,
                         EventKind::kDiscard, EventKind::kMark, EventKind::kCopy,
                         EventKind::kSignal, EventKind::kStreamWait, EventKind::kHostWaitDevice}));
  EXPECT_EQ(recording.events[2].location, 0);
  EXPECT_EQ(recording.events[3].pages.first, 1U) << "a discard takes whole pages alone";
  EXPECT_EQ(recording.events[3].pages.last, 2U);
  EXPECT_EQ(recording.marks[0].text, "step 1");
  EXPECT_EQ(recording.events[6].signal, recording.events[7].signal);
  EXPECT_EQ(recording.events[6].stream, recording.events[2].stream);
  uvmsim::replay::RecordedHints hints;
  const auto outcome = uvmsim::replay::run(recording, {}, hints);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.counters.prefetch_calls, 1U);
  EXPECT_EQ(outcome.steps.size(), 2U);
}

TEST_F(TraceRecording, AdviceOnASpanKeepsItsBlocksAndNamesThePagesThatAreAllocated) {
  allocate(kFirst + kBlockBytes, kBlockBytes);
  allocate(kSecond, 4096);
  recorder.advised(recorder.now(), 0, at(kFirst), 1000 * kBlockBytes, Advice::kSetPreferredLocation,
                   Place::device(0));
  recorder.prefetched(recorder.now(), 0, at(kFirst), kBlockBytes, Place::device(0), at(9));
  kernel(1, 1, {{at(kSecond), 4096, 1}});
  const Recording recording = made();
  EXPECT_EQ(recording.block_addresses, (std::vector<std::uint64_t>{kFirst + kBlockBytes, kSecond}));
  ASSERT_EQ(recording.events.size(), 4U) << "the prefetch of memory without a block is left out";
  EXPECT_EQ(recording.events[2].kind, EventKind::kAdvise);
  EXPECT_EQ(recording.events[2].pages.first, 0U);
  EXPECT_EQ(recording.events[2].pages.last, 2 * kPagesPerBlock);
  EXPECT_EQ(recording.events[2].amount, 1000U);
}

TEST_F(TraceRecording, FiguresAreByAllocationAndByCallSite) {
  allocate(kFirst, kBlockBytes);
  recorder.allocated_at(recorder.now(), at(kFirst), "a.py:1 load");
  allocate(kSecond, 2 * kBlockBytes);
  kernel(0, 1, {{at(kFirst), kBlockBytes, 1}, {at(kSecond), 2 * kBlockBytes, 1}});
  free(kFirst, kBlockBytes);
  allocate(kFirst, 4096);
  recorder.allocated_at(recorder.now(), at(kFirst), "a.py:1 load");
  recorder.allocated_at(recorder.now(), at(kFirst + kBlockBytes), "of no block");
  kernel(0, 1, {{at(kFirst), 4096, 3}});
  const Trace trace = read();
  const Recording recording = recording_of(trace);
  const std::vector<std::string> sites = call_sites_of(trace);
  EXPECT_EQ(sites, (std::vector<std::string>{"a.py:1 load", "", "a.py:1 load"}));
  uvmsim::replay::NoHints hints;
  const auto outcome = uvmsim::replay::run(recording, {}, hints);
  const auto by_site = sites_that_moved_most(recording, outcome, sites, 10);
  ASSERT_EQ(by_site.size(), 2U);
  std::map<std::string, nlohmann::ordered_json> found;
  for (const auto& each : by_site) found[each["site"]] = each;
  EXPECT_EQ(found["a.py:1 load"]["allocations"], 2U);
  EXPECT_EQ(found["a.py:1 load"]["allocated_bytes"], kBlockBytes + 4096);
  EXPECT_EQ(found["a.py:1 load"]["touches"], 2U);
  EXPECT_EQ(found[""]["allocations"], 1U);
  EXPECT_EQ(found["a.py:1 load"]["faults"],
            outcome.blocks.at(0).faults + outcome.blocks.at(2).faults);
  EXPECT_EQ(found[""]["faults"], outcome.blocks.at(1).faults);
  EXPECT_GT(outcome.blocks.at(1).faults, 0U);
  EXPECT_EQ(sites_that_moved_most(recording, outcome, sites, 1).size(), 1U);
  const auto by_block = allocations_that_moved_most(recording, outcome, sites, 1);
  ASSERT_EQ(by_block.size(), 1U);
  EXPECT_EQ(by_block[0]["site"], sites.at(by_block[0]["block"]));
}

TEST_F(TraceRecording, ATraceWithoutCallSitesHasNone) {
  allocate(kFirst, kBlockBytes);
  kernel(0, 1, {{at(kFirst), kBlockBytes, 1}});
  const Trace trace = read();
  EXPECT_TRUE(call_sites_of(trace).empty());
  const Recording recording = recording_of(trace);
  uvmsim::replay::NoHints hints;
  const auto outcome = uvmsim::replay::run(recording, {}, hints);
  const auto by_block = allocations_that_moved_most(recording, outcome, {}, 10);
  ASSERT_EQ(by_block.size(), 1U);
  EXPECT_FALSE(by_block[0].contains("site"));
}

TEST_F(TraceRecording, ATraceWithoutKernelsIsRefused) {
  allocate(kFirst, kBlockBytes);
  EXPECT_EQ(refusal(),
            "the trace has no kernels; accepted: one that a program wrote on a simulated device");
}

TEST_F(TraceRecording, AKernelWithoutAllOfItsTouchesIsRefused) {
  allocate(kFirst, kBlockBytes);
  kernel(1, 1, {{at(kFirst), 4096, 1}, {at(kFirst), 4096, 1}});
  recorder.stop();
  Trace trace = read_trace(file);
  trace.events.pop_back();
  try {
    recording_of(trace);
    FAIL() << "nothing was refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "event 1: a kernel of 2 touches has only 1; accepted: a trace that ends between "
                 "kernels");
  }
}

TEST_F(TraceRecording, NumbersThatMeanNothingAreRefused) {
  allocate(kFirst, kBlockBytes);
  kernel(1, 17, {});
  EXPECT_EQ(refusal(), "event 1: a kernel of the unknown type 17; accepted: 0 to 4, 252 to 255");
}

}  // namespace
}  // namespace uvm::machine_replay
