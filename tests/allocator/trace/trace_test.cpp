// A reader reads what a recorder wrote, in an order that replays. Whatever happens to the file, the
// program and the reader survive.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/fibonacci_hash.hpp"
#include "allocator/trace/trace_recorder.hpp"
#include "tools/trace/trace_reader.hpp"

#include "tests/support/sanitized.hpp"
#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

const std::vector<TraceRecorder::Device> kDevices = {{"first card", 8192 * kMiB},
                                                     {"second card", 4096 * kMiB}};

const void* at(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);
}
StreamHandle numbered_stream(std::uint64_t number) {
  return reinterpret_cast<StreamHandle>(number);
}

TraceBlock block(std::uint64_t address, std::size_t requested_bytes = 100) {
  return {Facade::kDevice, 1, at(address), requested_bytes, 512, numbered_stream(7)};
}

// Fails if an address is allocated twice, or is freed while not live.
void expect_replayable(const Trace& trace) {
  std::map<std::uint64_t, std::uint64_t> live;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const ThreadEvent& event = trace.events[i];
    if (event.kind == TraceKind::kAllocate) {
      ASSERT_TRUE(live.emplace(event.address, event.size_bytes).second) << "event " << i;
    } else if (event.kind == TraceKind::kFree) {
      auto found = live.find(event.address);
      ASSERT_NE(found, live.end()) << "event " << i;
      ASSERT_EQ(found->second, event.size_bytes) << "event " << i;
      live.erase(found);
    }
  }
}

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder =
        std::filesystem::temp_directory_path() / ("uvmalloc-trace-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    file = folder / "run.trace";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  void start() { ASSERT_EQ(recorder.start(file, kDevices), ""); }
  Trace stop_and_read() {
    recorder.stop();
    return read_trace(file);
  }
  std::string bytes() const {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::string write(const std::string& content) const {
    std::string name = folder / "changed.trace";
    std::ofstream(name, std::ios::binary) << content;
    return name;
  }
  static std::string refusal(const std::string& name) {
    try {
      read_trace(name);
    } catch (const TraceFormatError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path folder;
  std::string file;
  TraceRecorder recorder;
};

TEST_F(TraceTest, EveryKindIsReadAsItWasRecorded) {
  start();
  EXPECT_TRUE(recorder.enabled());
  recorder.stream_seen(recorder.now(), 1, numbered_stream(7));
  recorder.allocated(recorder.now(), block(0x1000));
  recorder.used(recorder.now(), at(0x1000), 0, numbered_stream(9));
  recorder.moved(recorder.now(), at(0x1000), 100, Place::device(1), Place::host(),
                 numbered_stream(7));
  recorder.advised(recorder.now(), 1, at(0x200000), 2 * kMiB, Advice::kSetAccessedBy,
                   Place::device(0));
  recorder.prefetched(recorder.now(), 1, at(0x200000), 2 * kMiB, Place::host(), numbered_stream(3));
  recorder.discarded(recorder.now(), 0, at(0x200000), 2 * kMiB, numbered_stream(3));
  recorder.out_of_memory(recorder.now(), block(0, 64 * kMiB),
                         {RuntimeError::kOutOfMemory, 2, "CUDA_ERROR_OUT_OF_MEMORY", "cuMemAlloc"});
  recorder.call_failed(
      recorder.now(), 0, at(0x200000), kMiB,
      {RuntimeError::kNotSupported, 801, "CUDA_ERROR_NOT_SUPPORTED", "cuMemAdvise"});
  recorder.mark("step 1");
  recorder.freed(recorder.now(), block(0x1000));
  recorder.stream_gone(recorder.now(), 1, numbered_stream(7));
  Trace trace = stop_and_read();

  EXPECT_FALSE(recorder.enabled());
  EXPECT_TRUE(trace.finished);
  EXPECT_EQ(trace.dropped, 0u);
  EXPECT_EQ(trace.process, static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(trace.program, "allocator_test");
  ASSERT_EQ(trace.devices.size(), 2u);
  EXPECT_EQ(trace.devices[1].name, "second card");
  EXPECT_EQ(trace.devices[1].capacity_bytes, 4096 * kMiB);

  auto expected = [](TraceKind kind, std::uint64_t address, std::uint64_t size, std::uint64_t extra,
                     std::uint64_t on, std::uint8_t facade, std::uint8_t flags, int detail,
                     std::int16_t device, std::int16_t place) {
    return TraceEvent{
        0,      address, size, extra, on, kind, facade, flags, static_cast<std::uint8_t>(detail),
        device, place};
  };
  constexpr std::uint8_t kDevice = 2;
  const TraceEvent kExpected[] = {
      expected(TraceKind::kStream, 0, 0, 0, 7, kNoFacade, 0, 0, 1, kNoPlace),
      expected(TraceKind::kAllocate, 0x1000, 100, 512, 7, kDevice, 0, 0, 1, kNoPlace),
      expected(TraceKind::kUse, 0x1000, 0, 0, 9, kNoFacade, 0, 0, 0, kNoPlace),
      expected(TraceKind::kMove, 0x1000, 100, 0, 7, kNoFacade, 0, 0, 1, kHostPlace),
      expected(TraceKind::kAdvise, 0x200000, 2 * kMiB, 0, 0, kNoFacade, 0, 5, 1, 0),
      expected(TraceKind::kPrefetch, 0x200000, 2 * kMiB, 0, 3, kNoFacade, 0, 0, 1, kHostPlace),
      expected(TraceKind::kDiscard, 0x200000, 2 * kMiB, 0, 3, kNoFacade, 0, 0, 0, kNoPlace),
      expected(TraceKind::kFailure, 0, 64 * kMiB, 1, 7, kDevice, 0, 2, 1, kNoPlace),
      expected(TraceKind::kFailure, 0x200000, kMiB, 2, 0, kNoFacade, 0, 3, 0, kNoPlace),
      expected(TraceKind::kMark, 0, 0, 3, 0, kNoFacade, 0, 0, kNoPlace, kNoPlace),
      expected(TraceKind::kFree, 0x1000, 100, 512, 7, kDevice, 0, 0, 1, kNoPlace),
      expected(TraceKind::kStream, 0, 0, 0, 7, kNoFacade, kTraceGone, 0, 1, kNoPlace),
  };
  ASSERT_EQ(trace.events.size(), std::size(kExpected));
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    TraceEvent event = trace.events[i];
    EXPECT_EQ(trace.events[i].thread, 1u);
    event.time = 0;
    EXPECT_EQ(event, kExpected[i]) << "event " << i << ", " << to_string(event.kind);
  }
  EXPECT_EQ(trace.text(trace.events[7]), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(trace.text(trace.events[8]), "cuMemAdvise: CUDA_ERROR_NOT_SUPPORTED (801)");
  EXPECT_EQ(trace.text(trace.events[9]), "step 1");
  EXPECT_EQ(trace.text(trace.events[10]), "");
}

TEST_F(TraceTest, KernelsWithTheirTouchesAndTheOrderOfStreamsAreReadAsTheyWereRecorded) {
  start();
  const TracedRange ranges[] = {{at(0x1000), 4096, 1}, {at(0x9000), 512, 3}};
  recorder.kernel_started(recorder.now(), 1, numbered_stream(7), 1u << 20, 3, ranges);
  recorder.kernel_started(recorder.now(), 0, numbered_stream(0), 500, kTraceFixedTime, {});
  recorder.signalled(recorder.now(), 0, numbered_stream(7), at(0x70));
  recorder.waited(recorder.now(), 0, numbered_stream(9), at(0x70), TraceWait::kStreamForSignal);
  recorder.waited(recorder.now(), 1, nullptr, nullptr, TraceWait::kHostForDevice);
  const Trace trace = stop_and_read();
  ASSERT_EQ(trace.events.size(), 7U);
  const ThreadEvent& kernel = trace.events[0];
  EXPECT_EQ(kernel.kind, TraceKind::kKernel);
  EXPECT_EQ(kernel.device, 1);
  EXPECT_EQ(kernel.size_bytes, 1U << 20);
  EXPECT_EQ(kernel.extra, 2U) << "touches follow";
  EXPECT_EQ(kernel.detail, 3);
  EXPECT_EQ(trace.events[2].kind, TraceKind::kTouch);
  EXPECT_EQ(trace.events[2].address, 0x9000U);
  EXPECT_EQ(trace.events[2].size_bytes, 512U);
  EXPECT_EQ(trace.events[2].detail, 3);
  EXPECT_EQ(trace.events[3].detail, kTraceFixedTime);
  EXPECT_EQ(trace.events[4].kind, TraceKind::kSignal);
  EXPECT_EQ(trace.events[4].address, 0x70U);
  EXPECT_EQ(trace.events[5].kind, TraceKind::kWait);
  EXPECT_EQ(trace.events[5].stream, 9U);
  EXPECT_EQ(trace.events[6].detail, static_cast<std::uint8_t>(TraceWait::kHostForDevice));
}

TEST_F(TraceTest, ACallSiteNamesItsBlockAndItsTextIsWrittenOnce) {
  start();
  for (const std::uint64_t address : {0x1000, 0x2000, 0x3000}) {
    recorder.allocated(recorder.now(), block(address));
    recorder.allocated_at(recorder.now(), at(address),
                          address == 0x2000 ? "train.py:7 step" : "train.py:3 load");
  }
  const Trace trace = stop_and_read();
  ASSERT_EQ(trace.events.size(), 6U);
  EXPECT_EQ(trace.texts, (std::vector<std::string>{"train.py:3 load", "train.py:7 step"}));
  EXPECT_EQ(trace.events[1].kind, TraceKind::kSite);
  EXPECT_EQ(trace.events[1].address, 0x1000U);
  EXPECT_EQ(trace.text(trace.events[1]), "train.py:3 load");
  EXPECT_EQ(trace.text(trace.events[3]), "train.py:7 step");
  EXPECT_EQ(trace.text(trace.events[5]), "train.py:3 load");
}

TEST_F(TraceTest, ACallSiteInCodeIsAFunctionOrAnOffsetInItsFile) {
  start();
  const auto in_library = reinterpret_cast<std::uintptr_t>(&getpid) + 4;
  const auto in_program = reinterpret_cast<std::uintptr_t>(&block);
  for (int repeat = 0; repeat < 2; ++repeat) {
    recorder.allocated_by(recorder.now(), at(0x1000), at(in_library));
    recorder.allocated_by(recorder.now(), at(0x2000), at(in_program));
  }
  recorder.allocated_by(recorder.now(), at(0x3000), at(0x11));
  const Trace trace = stop_and_read();
  ASSERT_EQ(trace.texts.size(), 3U);
  EXPECT_NE(trace.texts[0].find("getpid+0x3 in libc"), std::string::npos) << trace.texts[0];
  EXPECT_EQ(trace.texts[1].rfind("allocator_test+0x", 0), 0U) << trace.texts[1];
  EXPECT_EQ(trace.texts[2], "0x10");
  EXPECT_EQ(trace.text(trace.events[2]), trace.texts[0]);
  EXPECT_EQ(trace.text(trace.events[3]), trace.texts[1]);
}

TEST_F(TraceTest, ANewTraceWritesItsCallSitesAgain) {
  for (int run = 0; run < 2; ++run) {
    start();
    recorder.allocated_at(recorder.now(), at(0x1000), "train.py:3 load");
    recorder.allocated_by(recorder.now(), at(0x1000), at(0x11));
    const Trace trace = stop_and_read();
    EXPECT_EQ(trace.texts, (std::vector<std::string>{"train.py:3 load", "0x10"}));
  }
}

TEST_F(TraceTest, TimesAreNanosecondsSinceTheStart) {
  start();
  const auto begin = TraceClock::monotonic_ns();
  recorder.mark("before");
  const auto marked = TraceClock::monotonic_ns();
  while (TraceClock::monotonic_ns() < marked + 20'000'000) std::this_thread::yield();
  const auto over = TraceClock::monotonic_ns();
  recorder.mark("after");
  const auto end = TraceClock::monotonic_ns();
  Trace trace = stop_and_read();
  const auto between = trace.events[1].time - trace.events[0].time;
  EXPECT_GE(between + 100'000u, over - marked);
  EXPECT_LE(between, (end - begin) + 100'000u);
}

TEST_F(TraceTest, OffItRecordsNothing) {
  EXPECT_EQ(recorder.now(), 0u);
  recorder.allocated(recorder.now(), block(0x1000));
  recorder.mark("nobody hears it");
  recorder.stop();
  EXPECT_FALSE(std::filesystem::exists(file));
  start();
  EXPECT_TRUE(stop_and_read().events.empty());
}

// Records events of new and known blocks: at equal times, after pauses of any length, out of order.
TEST_F(TraceTest, WhatIsReadIsWhatWasRecorded) {
  TraceRecorder own{TraceClock(TraceClockKind::kNanoseconds)};
  for (int seed = 1; seed <= testing::steps(20, 6); ++seed) {
    ASSERT_EQ(own.start(file, kDevices), "");
    const TraceTime begin = own.now();
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::uint64_t addresses = seed % 2 == 0 ? 10 : 5000;
    TraceTime time = begin + 1000;
    std::vector<TraceEvent> expected;
    for (int i = 0; i < 20'000; ++i) {
      const std::uint64_t pick = random();
      if (pick % 3 == 0) time += random() % 1000;
      if (pick % 97 == 0) time += random() % (std::uint64_t{1} << (pick % 50));
      const TraceTime when = pick % 41 == 0 ? time - random() % 900 : time;
      const TraceBlock one{static_cast<Facade>(random() % kFacades),
                           static_cast<int>(random() % 2),
                           at(4096 * (1 + random() % addresses)),
                           random() % 3,
                           512 * (random() % 2),
                           numbered_stream(random() % 2)};
      if (pick % 89 == 0) {
        own.used(when, one.address, one.device, one.stream);
        expected.push_back(
            trace_event(TraceKind::kUse, when, one.device, one.address, 0, one.stream));
      } else if (pick % 2 == 0) {
        own.allocated(when, one);
        expected.push_back(trace_event(TraceKind::kAllocate, when, one));
      } else {
        own.freed(when, one);
        expected.push_back(trace_event(TraceKind::kFree, when, one));
      }
    }
    own.stop();
    std::ranges::stable_sort(expected, {}, &TraceEvent::time);
    const Trace trace = read_trace(file);
    ASSERT_EQ(trace.events.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      TraceEvent event = expected[i];
      event.time -= expected[0].time - trace.events[0].time;
      ASSERT_EQ(static_cast<const TraceEvent&>(trace.events[i]), event) << "event " << i;
    }
  }
}

TEST_F(TraceTest, TheFirstVersionIsReadToo) {
  ASSERT_EQ(
      recorder.start(file, kDevices, [](const auto& sink, const auto&) { sink(block(4096)); }), "");
  recorder.stop();
  std::string content = bytes();
  content[8] = 1;  // the version; nothing else differs, as no thread has recorded an event
  EXPECT_EQ(read_trace(write(content)).events.size(), 1u);
}

// The file's clock counts 3 ticks per nanosecond; the rate of this machine's clock is ignored.
TEST_F(TraceTest, TicksAreConvertedByTheMomentsThatTheFileHasInBothClocks) {
  TraceFileHeader header;
  header.header_bytes = sizeof(header);
  header.clock = TraceClockKind::kTicks;
  header.start_time = 3000;
  header.start_monotonic_ns = 50;
  TraceChunkHeader chunk;
  chunk.kind = TraceChunkKind::kPacked;
  chunk.count = 2;
  chunk.value = 1;
  chunk.time = 6000;
  chunk.monotonic_ns = 1050;
  TraceEvent model;
  model.time = 3300;
  model.kind = TraceKind::kAllocate;
  const PackedTraceEvent words[] = {{0, false, 0}, {30, true, 0}};
  TraceChunkHeader end;
  end.kind = TraceChunkKind::kEnd;
  std::string content;
  auto add = [&](const auto& value) {
    content.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(header), add(chunk), add(model), add(words), add(end);
  const Trace trace = read_trace(write(content));
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].time, 100u);
  EXPECT_EQ(trace.events[1].time, 110u);
  EXPECT_EQ(trace.events[1].kind, TraceKind::kFree);
}

// ---- times

TEST_F(TraceTest, AnEventAfterAPauseHasItsOwnTime) {
  TraceRecorder own{TraceClock(TraceClockKind::kNanoseconds)};
  ASSERT_EQ(own.start(file, kDevices), "");
  constexpr int kPairs = 10'000;
  auto pair = [&] {
    own.allocated(own.now(), block(4096));
    own.freed(own.now(), block(4096));
  };
  for (int i = 0; i < kPairs; ++i) pair();
  constexpr TraceTime kPause = 300'000'000;
  own.allocated(own.now() + kPause, block(4096));
  own.freed(own.now() + kPause, block(4096));
  own.stop();
  const Trace trace = read_trace(file);
  ASSERT_EQ(trace.events.size(), 2u * (kPairs + 1));
  const std::size_t after = 2 * std::size_t{kPairs};
  EXPECT_GE(trace.events[after].time - trace.events[after - 1].time, kPause);
}

TEST_F(TraceTest, TimesInAQuickLoopRiseAndAreBetweenThoseBeforeAndAfter) {
  TraceRecorder own{TraceClock(TraceClockKind::kNanoseconds)};
  ASSERT_EQ(own.start(file, kDevices), "");
  constexpr int kPairs = 20'000;
  std::vector<TraceTime> before;
  for (int i = 0; i < kPairs; ++i) {
    if (i % 100 == 0) before.push_back(own.now());
    own.allocated(own.now(), block(4096));
    own.freed(own.now(), block(4096));
  }
  const TraceTime after = own.now();
  own.stop();
  const Trace trace = read_trace(file);
  ASSERT_EQ(trace.events.size(), 2u * kPairs);
  expect_replayable(trace);
  const std::uint64_t start = trace.events[0].time;
  EXPECT_LE(trace.events.back().time - start, after - before[0]);
  for (std::size_t i = 1; i < trace.events.size(); ++i) {
    ASSERT_GE(trace.events[i].time, trace.events[i - 1].time);
  }
}

// The first thread records events in quick succession. Its free of the block comes after the other
// thread's free and allocation of that block.
TEST_F(TraceTest, AFreeIsNotBeforeWhatAnotherThreadDidWithTheBlock) {
  for (int round = 0; round < 50; ++round) {
    start();
    for (int i = 0; i < 200; ++i) {
      recorder.allocated(recorder.now(), block(8192));
      recorder.freed(recorder.now(), block(8192));
    }
    recorder.allocated(recorder.now(), block(4096));
    recorder.allocated(recorder.now(), block(8192));
    std::thread([&] {
      recorder.freed(recorder.now(), block(4096));
      recorder.allocated(recorder.now(), block(4096));
    }).join();
    // In every second round another event precedes the free.
    if (round % 2 == 0) recorder.allocated(recorder.now(), block(12288));
    recorder.freed(recorder.now(), block(4096));
    const Trace trace = stop_and_read();
    ASSERT_EQ(trace.events.size(), round % 2 == 0 ? 406u : 405u);
    expect_replayable(trace);
    ASSERT_EQ(trace.events.back().thread, 1u);
  }
}

// Threads pass on addresses through a locked pool, like the threads of an allocator.
class SharedAddresses {
 public:
  SharedAddresses(TraceRecorder* recorder, std::uint64_t count) : recorder_(*recorder) {
    for (std::uint64_t i = 1; i <= count; ++i) free_.push_back(i * 4096);
  }
  void allocate(std::mt19937_64* random, std::vector<TraceBlock>* mine) {
    std::unique_lock lock(mutex_);
    if (free_.empty()) return;
    TraceBlock got = block(free_.back(), 1 + (*random)() % 4096);
    free_.pop_back();
    const TraceTime when = recorder_.now();
    lock.unlock();
    recorder_.allocated(when, got);
    mine->push_back(got);
  }
  void free(std::mt19937_64* random, std::vector<TraceBlock>* mine) {
    if (mine->empty()) return;
    std::swap((*mine)[(*random)() % mine->size()], mine->back());
    std::unique_lock lock(mutex_);
    free_.push_back(reinterpret_cast<std::uint64_t>(mine->back().address));
    const TraceTime when = recorder_.now();
    lock.unlock();
    recorder_.freed(when, mine->back());
    mine->pop_back();
  }

 private:
  TraceRecorder& recorder_;
  std::mutex mutex_;
  std::vector<std::uint64_t> free_;
};

class TraceClocks : public TraceTest, public ::testing::WithParamInterface<TraceClockKind> {};

TEST_P(TraceClocks, AddressesThatThreadsPassOnComeInAnOrderThatReplays) {
  constexpr int kThreads = 4;
  constexpr int kSteps = 10'000;
  const TraceClock clock =
      GetParam() == TraceClockKind::kTicks ? TraceClock() : TraceClock(GetParam());
  TraceRecorder own(clock);
  ASSERT_EQ(own.start(file, kDevices), "");
  SharedAddresses addresses(&own, 40);
  std::atomic<std::size_t> recorded{0};
  std::latch together(kThreads);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(number);
      std::vector<TraceBlock> mine;
      // Each thread gets an address first: later, faster threads may hold all addresses.
      while (mine.empty()) addresses.allocate(&random, &mine);
      std::size_t events = 1;
      together.arrive_and_wait();
      for (int step = 0; step < kSteps; ++step) {
        const std::size_t before = mine.size();
        if (random() % 2 == 0) {
          addresses.allocate(&random, &mine);
        } else {
          addresses.free(&random, &mine);
        }
        events += mine.size() != before;
      }
      // Returns all addresses. Otherwise the other threads could never get them.
      for (; !mine.empty(); ++events) addresses.free(&random, &mine);
      recorded += events;
    });
  }
  for (std::thread& thread : threads) thread.join();
  own.stop();
  Trace trace = read_trace(file);
  EXPECT_EQ(trace.clock, clock.kind());
  EXPECT_EQ(trace.events.size(), recorded.load());
  EXPECT_EQ(trace.dropped, 0u);
  std::set<std::uint32_t> seen;
  for (const ThreadEvent& event : trace.events) seen.insert(event.thread);
  EXPECT_EQ(seen, (std::set<std::uint32_t>{1, 2, 3, 4}));
  expect_replayable(trace);
}
INSTANTIATE_TEST_SUITE_P(Both, TraceClocks,
                         ::testing::Values(TraceClockKind::kTicks, TraceClockKind::kNanoseconds));

TEST_F(TraceTest, TwoBlocksWhoseAddressesShareASetTakeAWordAnEvent) {
  constexpr std::uint64_t kFirst = 0x7f0000000000;
  std::uint64_t second = kFirst + 512;
  while (fibonacci_slot<16>(second) != fibonacci_slot<16>(kFirst)) second += 512;
  start();
  constexpr std::size_t kTimes = 1000;
  for (std::size_t i = 0; i < kTimes; ++i) {
    for (std::uint64_t address : {kFirst, second}) {
      recorder.allocated(recorder.now(), block(address));
    }
    for (std::uint64_t address : {kFirst, second}) recorder.freed(recorder.now(), block(address));
  }
  const Trace trace = stop_and_read();
  EXPECT_EQ(trace.events.size(), 4 * kTimes);
  expect_replayable(trace);
  // The limit leaves room for pauses, chunks and the two blocks themselves.
  EXPECT_LT(bytes().size(), 5 * kTimes * sizeof(PackedTraceEvent));
}

TEST_F(TraceTest, AThreadsEventsKeepTheirOrderAcrossFullChunks) {
  start();
  constexpr std::size_t kEvents = 3 * kTraceEventsPerChunk + 1;
  for (std::size_t i = 0; i < kEvents; ++i)
    recorder.allocated(recorder.now(), block(4096 * (i + 1)));
  Trace trace = stop_and_read();
  ASSERT_EQ(trace.events.size(), kEvents);
  for (std::size_t i = 0; i < kEvents; ++i) ASSERT_EQ(trace.events[i].address, 4096 * (i + 1));
}

TEST_F(TraceTest, WhatAThreadThatEndedHadRecordedIsInTheFileAtOnce) {
  start();
  for (int i = 0; i < 3; ++i) {
    std::thread([&] { recorder.allocated(recorder.now(), block(0x1000)); }).join();
  }
  Trace trace = read_trace(file, UnfinishedTrace::kAccept);
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[0].thread, 1u);
  EXPECT_EQ(trace.events[2].thread, 3u);
  EXPECT_FALSE(trace.finished);
  EXPECT_EQ(refusal(file), file + ": at byte " + std::to_string(bytes().size()) +
                               ": the trace is not finished: the process still runs or was killed "
                               "(truncated)");
}

// The caller lists the live blocks under locks that every thread takes.
TEST_F(TraceTest, NothingIsWrittenWhileTheLiveBlocksAreListed) {
  std::uintmax_t before = 0;
  std::uintmax_t after = 0;
  ASSERT_EQ(recorder.start(file, kDevices,
                           [&](const auto& sink, const auto& begin) {
                             before = std::filesystem::file_size(file);
                             for (std::size_t i = 1; i <= 5; ++i) sink(block(4096 * i));
                             EXPECT_FALSE(recorder.enabled());
                             begin();
                             EXPECT_TRUE(recorder.enabled());
                             after = std::filesystem::file_size(file);
                           }),
            "");
  EXPECT_GT(before, 0u) << "the header";
  EXPECT_EQ(after, before);
  EXPECT_GT(std::filesystem::file_size(file), after);
  EXPECT_EQ(stop_and_read().events.size(), 5u);
}

TEST_F(TraceTest, LiveBlocksAtTheStartComeFirstAndMarked) {
  constexpr std::size_t kBlocks = kTraceEventsPerChunk + 5;
  ASSERT_EQ(recorder.start(file, kDevices,
                           [](const auto& sink, const auto&) {
                             for (std::size_t i = 1; i <= kBlocks; ++i) sink(block(4096 * i));
                           }),
            "");
  recorder.freed(recorder.now(), block(4096));
  Trace trace = stop_and_read();
  ASSERT_EQ(trace.events.size(), kBlocks + 1);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const ThreadEvent& event = trace.events[i];
    ASSERT_EQ(event.kind, TraceKind::kAllocate);
    ASSERT_EQ(event.address, 4096 * (i + 1));
    ASSERT_EQ(event.flags, kTraceAlreadyLive);
    ASSERT_EQ(event.time, 0u);
    ASSERT_EQ(event.thread, 0u);
  }
  EXPECT_EQ(trace.events.back().kind, TraceKind::kFree);
}

TEST_F(TraceTest, ItCanBeStartedAgainAndEachTraceHasItsOwnEvents) {
  start();
  recorder.mark("first");
  const TraceTime early = recorder.now();
  recorder.stop();
  const std::string second = folder / "second.trace";
  ASSERT_EQ(recorder.start(second, kDevices), "");
  recorder.allocated(early, block(0x1000));  // its time is in the first trace
  recorder.mark("second");
  recorder.stop();
  Trace trace = read_trace(second);
  ASSERT_EQ(trace.events.size(), 1u);
  EXPECT_EQ(trace.text(trace.events[0]), "second");
  EXPECT_EQ(read_trace(file).events.size(), 1u);
}

TEST_F(TraceTest, AFailureThatRepeatsHasOneText) {
  start();
  const RuntimeStatus failed{RuntimeError::kOutOfMemory, 2, "NO_MEMORY", "allocate_managed"};
  for (int i = 0; i < 3; ++i) recorder.call_failed(recorder.now(), 0, at(4096), 512, failed);
  const Trace trace = stop_and_read();
  EXPECT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.texts, std::vector<std::string>{"allocate_managed: NO_MEMORY (2)"});
}

TEST_F(TraceTest, ALongMarkIsCutAtTheEndOfACharacter) {
  const std::string character = "\xf0\x9f\x98\x80";
  struct Case {
    std::string written;
    std::size_t read_bytes;
  };
  const std::vector<Case> cases = {
      {std::string(4096, 'x'), 4096},
      {std::string(4097, 'x'), 4096},
      {std::string(4092, 'x') + character, 4096},
      {std::string(4093, 'x') + character, 4093},
      {std::string(4095, 'x') + character, 4095},
      {std::string(4096, 'x') + character, 4096},
      {std::string(5000, '\x80'), 4096},  // not UTF-8
  };
  start();
  for (const Case& each : cases) recorder.mark(each.written);
  Trace trace = stop_and_read();
  ASSERT_EQ(trace.events.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(trace.text(trace.events[i]), cases[i].written.substr(0, cases[i].read_bytes)) << i;
  }
}

TEST_F(TraceTest, StartingTwiceIsRefusedInOneLine) {
  start();
  EXPECT_EQ(recorder.start(folder / "other", kDevices),
            "trace " + (folder / "other").string() + ": already tracing to " + file);
  EXPECT_EQ(recorder.file(), file);
}

TEST_F(TraceTest, AnImpossibleFileIsRefusedInOneLine) {
  const std::string nowhere = folder / "missing" / "run.trace";
  EXPECT_EQ(recorder.start(nowhere, kDevices),
            "trace " + nowhere + ": cannot be opened: No such file or directory");
  EXPECT_EQ(recorder.start("/dev/full", kDevices), "trace /dev/full: is not a regular file");
  EXPECT_FALSE(recorder.enabled());
}

// Writing to a pipe could wait forever or raise SIGPIPE, and opening a pipe could wait forever.
TEST_F(TraceTest, APipeIsRefusedWhetherOrNotSomebodyReadsIt) {
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(recorder.start(pipe, kDevices), "trace " + pipe + ": is not a regular file");
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(recorder.start(pipe, kDevices), "trace " + pipe + ": is not a regular file");
  close(reader);
  start();
}

TEST_F(TraceTest, ALinkIsRefusedAndWhatItNamesStays) {
  const std::string precious = folder / "precious";
  const std::string link = folder / "link";
  std::ofstream(precious) << "precious";
  std::filesystem::create_symlink(precious, link);
  EXPECT_EQ(
      recorder.start(link, kDevices),
      "trace " + link +
          ": cannot be opened: a link leads there, which is not followed; name the file itself");
  EXPECT_EQ(std::filesystem::file_size(precious), 8u);
}

TEST_F(TraceTest, AFormerFileIsReplacedAndItsOtherNameKeepsItsContent) {
  const std::string precious = folder / "precious";
  std::ofstream(precious) << "precious";
  std::filesystem::permissions(precious, std::filesystem::perms(0666));
  std::filesystem::create_hard_link(precious, file);
  start();
  EXPECT_EQ(stop_and_read().events.size(), 0u);
  EXPECT_EQ(std::filesystem::file_size(precious), 8u);
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
}

TEST_F(TraceTest, AFileThatHasTheNumberOfAClosedDescriptorIsLeftAlone) {
  start();
  int descriptor = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry, error) == file) {
      descriptor = std::stoi(entry.path().filename());
    }
  }
  ASSERT_GE(descriptor, 0);
  const std::string other = folder / "other";
  const int opened = open(other.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::write(opened, "precious", 8), 8);
  ASSERT_EQ(dup2(opened, descriptor), descriptor);
  close(opened);

  ::testing::internal::CaptureStderr();
  const TraceTime now = recorder.now();
  for (std::size_t i = 0; i < 2 * kPackedWordsPerChunk; ++i) recorder.allocated(now, block(4096));
  EXPECT_FALSE(recorder.enabled());
  recorder.mark("of no trace");
  recorder.stop();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "uvmalloc: the trace " + file + " ends early: the program has closed its file\n");
  EXPECT_EQ(recorder.dropped(), kPackedWordsPerChunk + 1) << "with the one that found it out";
  EXPECT_EQ(std::filesystem::file_size(other), 8u);
  EXPECT_EQ(close(descriptor), 0) << "it was the program's";
  EXPECT_NO_THROW(read_trace(file, UnfinishedTrace::kAccept));
  ASSERT_EQ(recorder.start(folder / "next", kDevices), "");
}

TEST_F(TraceTest, TheNameCanHoldTheProcessNumber) {
  ASSERT_EQ(recorder.start(folder / "a.%p.b.%p", kDevices), "");
  const std::string number = std::to_string(getpid());
  EXPECT_EQ(recorder.file(), folder / ("a." + number + ".b." + number));
}

TEST_F(TraceTest, TwoRecordersDoNotWriteOneFile) {
  start();
  TraceRecorder other;
  ASSERT_EQ(other.start(file, kDevices), "");
  EXPECT_EQ(other.file(), file + "." + std::to_string(getpid()));
}

TEST_F(TraceTest, StoppingWhileThreadsRecordLosesNothingThatWasBefore) {
  start();
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> recorded{0};
  std::thread other([&] {
    for (std::uint64_t i = 1; !over; ++i) {
      recorder.allocated(recorder.now(), block(4096 * i));
      recorded = i;
    }
  });
  while (recorded < 10 * kTraceEventsPerChunk) std::this_thread::yield();
  const std::uint64_t before = recorded;
  recorder.stop();
  over = true;
  other.join();
  Trace trace = read_trace(file);
  EXPECT_GE(trace.events.size(), before);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    ASSERT_EQ(trace.events[i].address, 4096 * (i + 1));
  }
}

// ---- a full disk

TEST_F(TraceTest, WhereTheFileCannotGrowEventsAreCountedAndOneLineSaysSo) {
  constexpr std::size_t kChunkBytes = sizeof(TraceChunkHeader) + sizeof(TraceEvent) +
                                      kPackedWordsPerChunk * sizeof(PackedTraceEvent);
  // In a child process that may write two and a half chunks.
  ::testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    TraceRecorder own;
    if (!own.start(file, kDevices).empty()) _exit(1);
    const rlimit limit{kChunkBytes * 5 / 2, kChunkBytes * 5 / 2};
    setrlimit(RLIMIT_FSIZE, &limit);
    const TraceTime now = own.now();
    for (std::size_t i = 0; i < 4 * kPackedWordsPerChunk + 7; ++i) {
      errno = 17;
      own.allocated(now, block(4096));
      if (errno != 17) _exit(2);
    }
    own.stop();
    sigset_t blocked;
    sigset_t pending;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    sigpending(&pending);
    if (sigismember(&blocked, SIGXFSZ) != 0 || sigismember(&pending, SIGXFSZ) != 0) _exit(4);
    _exit(own.dropped() == 2 * kPackedWordsPerChunk ? 0 : 3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const std::string said = ::testing::internal::GetCapturedStderr();
  ASSERT_EQ(status, 0);
  EXPECT_EQ(said, "uvmalloc: the trace " + file +
                      " cannot be written (File too large): events are left out and counted\n");
  Trace trace = read_trace(file);
  EXPECT_EQ(trace.dropped, 2 * kPackedWordsPerChunk);
  EXPECT_EQ(trace.events.size(), 2 * kPackedWordsPerChunk + 7);
}

TEST_F(TraceTest, LiveBlocksThatCannotBeWrittenAreCounted) {
  ::testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
    TraceRecorder own;
    const std::string why_not = own.start(file, kDevices, [](const auto& sink, const auto&) {
      for (std::uint64_t i = 1; i <= 100; ++i) sink(block(4096 * i));
    });
    _exit(why_not.empty() && own.dropped() == 100 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0);
}

TEST_F(TraceTest, ASignalThatTheProgramKeepsPendingStaysPending) {
  ::testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    sigset_t size;
    sigemptyset(&size);
    sigaddset(&size, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &size, nullptr);
    raise(SIGXFSZ);
    const rlimit limit{16, 16};
    setrlimit(RLIMIT_FSIZE, &limit);
    TraceRecorder own;
    if (own.start(file, kDevices) != "trace " + file + ": cannot be written: File too large") {
      _exit(1);
    }
    sigset_t pending;
    sigpending(&pending);
    _exit(sigismember(&pending, SIGXFSZ) == 1 ? 0 : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0);
}

// ---- fork

TEST_F(TraceTest, AForkedChildLeavesTheParentsFileAlone) {
  for (bool is_called : {true, false}) {
    start();
    recorder.mark("before");
    const pid_t child = fork();
    if (child == 0) {
      if (is_called) recorder.after_fork_in_child();
      for (std::size_t i = 0; i < 3 * kPackedWordsPerChunk; ++i) {
        recorder.allocated(recorder.now(), block(4096));
      }
      recorder.mark("of the child");
      recorder.stop();
      _exit(recorder.start(file + ".child", kDevices).find("a forked child") != std::string::npos
                ? 0
                : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    recorder.mark("after");
    Trace trace = stop_and_read();
    ASSERT_EQ(trace.events.size(), 2u);
    EXPECT_EQ(trace.text(trace.events[0]), "before");
    EXPECT_EQ(trace.text(trace.events[1]), "after");
    EXPECT_FALSE(std::filesystem::exists(file + ".child"));
  }
}

// Ends the process without exit handlers, in the second round of a thread's destructors, which
// comes after the recorder's destructor.
pthread_key_t last_key;
void end_in_second_round(void* value) {
  static bool again = false;
  if (std::exchange(again, true)) _exit(0);
  pthread_setspecific(last_key, value);
}

TEST_F(TraceTest, AThreadOfAForkedChildEndsWithoutWriting) {
  start();
  recorder.mark("before");
  std::thread([&] {
    recorder.mark("in a thread");
    const pid_t child = fork();
    if (child == 0) {
      pthread_key_create(&last_key, end_in_second_round);
      pthread_setspecific(last_key, &last_key);
      pthread_exit(nullptr);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }).join();
  EXPECT_EQ(stop_and_read().events.size(), 2u);
}

// ---- damaged files

TEST_F(TraceTest, AFileCutAnywhereIsRefusedAndItsWholeChunksCanBeRead) {
  start();
  recorder.mark("a text");
  recorder.allocated(recorder.now(), block(4096));
  recorder.stop();
  const std::string whole = bytes();
  EXPECT_EQ(read_trace(file).events.size(), 2u);
  const std::size_t header_bytes = sizeof(TraceFileHeader) + 2 * sizeof(TraceFileDevice) + 16;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = write(whole.substr(0, size));
    const std::string said = refusal(cut);
    ASSERT_EQ(said.find(cut + ": at byte " + std::to_string(size) + ": "), 0u) << said;
    ASSERT_NE(said.find("truncated"), std::string::npos) << said;
    if (size >= header_bytes) {
      ASSERT_FALSE(read_trace(cut, UnfinishedTrace::kAccept).finished) << size;
    }
  }
}

TEST_F(TraceTest, AnyDamagedByteGivesATraceOrARefusal) {
  start();
  recorder.mark("a text");
  recorder.allocated(recorder.now(), block(4096));
  recorder.stop();
  const std::string whole = bytes();
  for (std::size_t offset = 0; offset < whole.size(); ++offset) {
    for (int change : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[offset] = static_cast<char>(damaged[offset] ^ change);
      const std::string name = write(damaged);
      const std::string said = refusal(name);
      ASSERT_TRUE(said == "accepted" || said.find(name + ": at byte ") == 0) << said;
    }
  }
}

TEST_F(TraceTest, ARefusalNamesWhatIsWrong) {
  start();
  recorder.stop();
  auto changed = [&](std::size_t offset, const char* to, std::size_t count) {
    std::string content = bytes();
    content.replace(offset, count, to, count);
    const std::string said = refusal(write(content));
    return said.substr(said.find(": at byte ") + 2);
  };
  EXPECT_EQ(changed(0, "PK\3\4", 4), "at byte 0: this is not a trace of uvmalloc");
  EXPECT_EQ(changed(8, "\5\0\0\0", 4),
            "at byte 8: the trace has version 5; this program reads versions up to 4");
  EXPECT_EQ(changed(12, "\1\2\3\4", 4),
            "at byte 12: the trace is from a machine with the other byte order");
  EXPECT_EQ(refusal(write(bytes() + "x")).find("there is more behind the end") != std::string::npos,
            true);
  EXPECT_THROW(read_trace(folder / "missing"), std::system_error);
  EXPECT_THROW(read_trace(folder), std::system_error);
}

// ---- equal times

TEST_F(TraceTest, SimultaneousEventsOfThreadsComeInAnOrderThatReplays) {
  start();
  std::vector<TraceTime> now{recorder.now()};
  // All in one tick: thread 2 frees the block of thread 1, thread 3 allocates that address again
  // and frees the block of thread 2.
  std::thread([&] { recorder.allocated(now[0], block(4096)); }).join();
  std::thread([&] {
    recorder.freed(now[0], block(4096));
    recorder.allocated(now[0], block(8192));
  }).join();
  std::thread([&] {
    recorder.allocated(now[0], block(4096));
    recorder.freed(now[0], block(8192));
  }).join();
  Trace trace = stop_and_read();
  ASSERT_EQ(trace.events.size(), 5u);
  expect_replayable(trace);
}

// Computes the expected order in a plain, slow way.
std::vector<ThreadEvent> in_plain_order(std::vector<ThreadEvent> events) {
  std::set<std::uint64_t> live;
  for (std::size_t done = 0; done < events.size(); ++done) {
    std::set<std::uint32_t> blocked;
    std::size_t chosen = done;
    for (std::size_t i = done; i < events.size(); ++i) {
      const bool is_live = live.contains(events[i].address);
      const bool possible = events[i].kind == TraceKind::kAllocate ? !is_live
                            : events[i].kind == TraceKind::kFree   ? is_live
                                                                   : true;
      if (possible && !blocked.contains(events[i].thread)) {
        chosen = i;
        break;
      }
      blocked.insert(events[i].thread);
    }
    const auto at = events.begin() + static_cast<std::ptrdiff_t>(done);
    std::rotate(at, events.begin() + static_cast<std::ptrdiff_t>(chosen),
                events.begin() + static_cast<std::ptrdiff_t>(chosen) + 1);
    if (events[done].kind == TraceKind::kAllocate) live.insert(events[done].address);
    if (events[done].kind == TraceKind::kFree) live.erase(events[done].address);
  }
  return events;
}

// Returns a file of events at one time; each event has its own chunk.
std::string simultaneous(const std::vector<ThreadEvent>& events) {
  std::string bytes;
  auto add = [&](const auto& part) {
    bytes.append(reinterpret_cast<const char*>(&part), sizeof(part));
  };
  TraceFileHeader header;
  header.header_bytes = sizeof(header);
  header.start_time = 1;
  add(header);
  for (const ThreadEvent& event : events) {
    TraceChunkHeader chunk;
    chunk.count = 1;
    chunk.thread = event.thread;
    add(chunk);
    add(static_cast<const TraceEvent&>(event));
  }
  TraceChunkHeader end;
  end.kind = TraceChunkKind::kEnd;
  add(end);
  return bytes;
}

ThreadEvent at_one_time(TraceKind kind, std::uint64_t address, std::uint32_t thread) {
  ThreadEvent event;
  event.kind = kind;
  event.time = 5;
  event.address = address;
  event.thread = thread;
  return event;
}

TEST_F(TraceTest, SimultaneousEventsComeAsTheFirstThatIsPossibleEachTime) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    std::vector<ThreadEvent> events;
    for (int i = 0; i < 40; ++i) {
      const auto kind = std::array{TraceKind::kAllocate, TraceKind::kAllocate, TraceKind::kFree,
                                   TraceKind::kFree, TraceKind::kUse}[random() % 5];
      events.push_back(at_one_time(kind, 512 * (1 + random() % 4), 1 + random() % 5));
    }
    const std::vector<ThreadEvent> expected = in_plain_order(events);
    const Trace trace = read_trace(write(simultaneous(events)));
    ASSERT_EQ(trace.events.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(trace.events[i].kind, expected[i].kind) << i;
      EXPECT_EQ(trace.events[i].address, expected[i].address) << i;
      EXPECT_EQ(trace.events[i].thread, expected[i].thread) << i;
    }
  }
}

// Frees of a block that no thread has, first by two threads, then by one thread for each event. If
// each step looked at all remaining events, this would take hours, and reach the runner's limit.
TEST_F(TraceTest, ManySimultaneousEventsAreReadInTheTimeOfAFewSteps) {
  constexpr std::uint32_t kEvents = testing::steps(300'000, 30'000);
  for (std::uint32_t threads : {2u, kEvents}) {
    std::vector<ThreadEvent> events;
    for (std::uint32_t i = 0; i < kEvents; ++i) {
      events.push_back(at_one_time(TraceKind::kFree, 512, 1 + i % threads));
    }
    EXPECT_EQ(read_trace(write(simultaneous(events))).events.size(), events.size());
  }
}

}  // namespace
}  // namespace uvm
