// A replay makes the requests of the trace in their order, and finds the faults of a wrong target.
#include "tools/replay/replayer.hpp"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include <fmt/format.h>

namespace uvm::replay {
namespace {

// Gives out increasing addresses and records its requests.
class RecordingTarget : public ReplayTarget {
 public:
  void prepare(std::span<const ReplayStream> streams) override {
    for (const ReplayStream& stream : streams) {
      log.push_back(fmt::format("stream {}:{:#x}", stream.device, stream.handle));
    }
  }
  void* allocate(Facade facade, int device, std::size_t size_bytes, int stream) override {
    if (size_bytes > capacity_bytes) {
      log.push_back(fmt::format("refuse {}", size_bytes));
      return nullptr;
    }
    next += 4096;
    log.push_back(fmt::format("allocate {} {} {} on {}: {:#x}", to_string(facade), device,
                              size_bytes, stream, next));
    return address(next);
  }
  bool free(void* block) override {
    log.push_back(fmt::format("free {}", block));
    return true;
  }
  bool use(void* block, int stream) override {
    log.push_back(fmt::format("use {} on {}", block, stream));
    return true;
  }
  bool move(void* block, Place source, Place destination, int stream) override {
    log.push_back(fmt::format("move {} from {} to {} on {}", block, to_string(source),
                              to_string(destination), stream));
    return true;
  }
  static void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

  std::vector<std::string> log;
  std::uintptr_t next = 0;
  std::size_t capacity_bytes = 1u << 20;
};

// Gives the same block for every request.
class StuckTarget final : public RecordingTarget {
 public:
  void* allocate(Facade, int, std::size_t, int) override { return address(0x7000); }
};

// Gives blocks, and later refuses every call about them.
class RefusingTarget final : public RecordingTarget {
 public:
  bool free(void*) override { return false; }
  bool use(void*, int) override { return false; }
  bool move(void*, Place, Place, int) override { return false; }
};

ThreadEvent event(TraceKind kind, std::uint64_t address, std::uint64_t size_bytes = 0,
                  std::uint64_t stream = 0, std::int16_t device = 0,
                  std::int16_t place = kNoPlace) {
  ThreadEvent made;
  made.kind = kind;
  made.address = address;
  made.size_bytes = size_bytes;
  made.stream = stream;
  made.device = device;
  made.place = place;
  const bool request = kind == TraceKind::kAllocate || kind == TraceKind::kFailure;
  made.facade = request ? static_cast<std::uint8_t>(Facade::kDevice) : kNoFacade;
  return made;
}

Trace trace_of(std::vector<ThreadEvent> events) {
  Trace trace;
  trace.devices = {{"first", 1}, {"second", 1}};
  trace.events = std::move(events);
  return trace;
}

using Lines = std::vector<std::string>;

TEST(Replayer, TheTargetGetsTheTracesRequestsAndTheRestIsFreed) {
  const ReplayPlan plan = make_plan(trace_of({
      event(TraceKind::kStream, 0, 0, 0x50),
      event(TraceKind::kAllocate, 0xa000, 100, 0x50),
      event(TraceKind::kAdvise, 0xa000, 100),
      event(TraceKind::kAllocate, 0xb000, 200, 0, 1),
      event(TraceKind::kUse, 0xa000, 0, 0x60, 1),
      event(TraceKind::kMove, 0xb000, 200, 0x60, 1, kHostPlace),
      event(TraceKind::kMove, 0xb000, 200, 0x60, kHostPlace, 1),
      event(TraceKind::kFree, 0xa000),
      event(TraceKind::kAllocate, 0xa000, 300, 0x50),
  }));
  EXPECT_EQ(plan.slots, 2u) << "the slot of the freed block is used again";
  RecordingTarget target;
  Replayer replayer(plan, target);
  const ReplayOutcome outcome = replayer.run({.check = true});
  EXPECT_EQ(target.log, (Lines{
                            "stream 0:0x50",
                            "stream 1:0x0",
                            "stream 1:0x60",
                            "allocate device 0 100 on 0: 0x1000",
                            "allocate device 1 200 on 1: 0x2000",
                            "use 0x1000 on 2",
                            "move 0x2000 from device:1 to host on 2",
                            "move 0x2000 from host to device:1 on 2",
                            "free 0x1000",
                            "allocate device 0 300 on 0: 0x3000",
                            "free 0x3000",
                            "free 0x2000",
                        }));
  EXPECT_EQ(outcome.operations, 7u);
  EXPECT_EQ(outcome.mismatch_count, 0u);
}

TEST(Replayer, EventsOfUnknownBlocksAreLeftOutAndCounted) {
  const ReplayPlan plan = make_plan(trace_of({
      event(TraceKind::kFree, 0xa000),
      event(TraceKind::kUse, 0xa000, 0, 0x50),
      event(TraceKind::kMove, 0xa000, 1, 0x50, 0, kHostPlace),
  }));
  EXPECT_TRUE(plan.operations.empty());
  EXPECT_EQ(plan.unknown_blocks, 3u);
}

TEST(Replayer, AMissingFreeIsPutBeforeTheNextAllocationOfTheAddress) {
  const ReplayPlan plan = make_plan(trace_of({
      event(TraceKind::kAllocate, 0xa000, 100),
      event(TraceKind::kAllocate, 0xa000, 200),
  }));
  ASSERT_EQ(plan.operations.size(), 3u);
  EXPECT_EQ(plan.operations[1].kind, ReplayKind::kFree);
}

TEST(Replayer, MarksLieBetweenTheOperationsAroundThem) {
  const ReplayPlan plan = make_plan(trace_of({
      event(TraceKind::kMark, 0),
      event(TraceKind::kAllocate, 0xa000, 100),
      event(TraceKind::kAdvise, 0xa000, 100),
      event(TraceKind::kMark, 0),
      event(TraceKind::kFree, 0xa000),
      event(TraceKind::kMark, 0),
  }));
  EXPECT_EQ(plan.marks, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(Replayer, AnAllocationWithoutDeviceIsRefused) {
  EXPECT_THROW(make_plan(trace_of({event(TraceKind::kAllocate, 0xa000, 1, 0, kNoPlace)})),
               std::invalid_argument);
}

TEST(Replayer, ABlockThatOverlapsALiveOneIsAMismatch) {
  const ReplayPlan plan = make_plan(trace_of({
      event(TraceKind::kMark, 0),
      event(TraceKind::kAllocate, 0xa000, 100),
      event(TraceKind::kAllocate, 0xb000, 200),
  }));
  StuckTarget target;
  Replayer replayer(plan, target);
  const ReplayOutcome outcome = replayer.run({.check = true});
  ASSERT_EQ(outcome.mismatches.size(), 1u);
  EXPECT_EQ(outcome.mismatches[0].event, 2u);
  EXPECT_EQ(outcome.mismatches[0].text,
            "a block of 200 bytes at 0x7000 overlaps a live one of 100 bytes at 0x7000");
  EXPECT_EQ(replayer.run({}).mismatch_count, 0u) << "not looked for";
}

TEST(Replayer, AFreeAUseOrAMoveThatIsRefusedIsAMismatch) {
  const ReplayPlan plan = make_plan(trace_of({
      event(TraceKind::kMark, 0),
      event(TraceKind::kAllocate, 0xa000, 100),
      event(TraceKind::kUse, 0xa000, 0, 0x50),
      event(TraceKind::kMove, 0xa000, 100, 0x50, 0, kHostPlace),
      event(TraceKind::kFree, 0xa000),
      event(TraceKind::kFailure, 0, 200),
      event(TraceKind::kAllocate, 0xb000, 300),
  }));
  RefusingTarget target;
  Replayer replayer(plan, target);
  const ReplayOutcome outcome = replayer.run({.check = true});
  Lines found;
  for (const Mismatch& mismatch : outcome.mismatches) {
    found.push_back(fmt::format("{}: {}", mismatch.event, mismatch.text));
  }
  EXPECT_EQ(found, (Lines{
                       "2: a use is refused",
                       "3: a move is refused",
                       "4: a free is refused",
                       "5: the free of a block that the trace did not get is refused",
                       "6: the free of a block that the trace leaves is refused",
                   }));
  EXPECT_EQ(replayer.run({}).mismatch_count, 0u) << "not looked for";
}

TEST(Replayer, RequestsMustFailWhereTheyFailedInTheTrace) {
  const ReplayPlan plan = make_plan(trace_of({
      event(TraceKind::kAllocate, 0xa000, 100),
      event(TraceKind::kFailure, 0, 5000),
      event(TraceKind::kAllocate, 0xb000, 5000),
      event(TraceKind::kFailure, 0, 200),
      event(TraceKind::kUse, 0xb000, 0, 0x50),
      event(TraceKind::kFree, 0xb000),
  }));
  RecordingTarget target;
  target.capacity_bytes = 4096;
  Replayer replayer(plan, target);
  const ReplayOutcome outcome = replayer.run({.compare_failures = true});
  EXPECT_EQ(outcome.failed_allocations, 2u);
  ASSERT_EQ(outcome.mismatches.size(), 2u);
  EXPECT_EQ(outcome.mismatches[0].event, 2u);
  EXPECT_EQ(outcome.mismatches[0].text,
            "a request of 5000 bytes fails here and succeeded in the trace");
  EXPECT_EQ(outcome.mismatches[1].event, 3u);
  EXPECT_EQ(outcome.mismatches[1].text,
            "a request of 200 bytes succeeds here and failed in the trace");
  EXPECT_EQ(replayer.run({.check = true}).mismatch_count, 0u) << "the capacity is not the trace's";
}

TEST(Replayer, AFailureOfTheDriverIsNoRequest) {
  ThreadEvent failure = event(TraceKind::kFailure, 0xa000, 100);
  failure.facade = kNoFacade;
  EXPECT_TRUE(make_plan(trace_of({failure})).operations.empty());
}

}  // namespace
}  // namespace uvm::replay
