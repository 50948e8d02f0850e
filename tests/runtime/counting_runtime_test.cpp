#include "runtime/counting_runtime.hpp"

#include <gtest/gtest.h>

#include "tests/support/fake_runtime.hpp"

namespace uvm {
namespace {

using testing::FakeMachine;
using testing::FakeRuntime;

// Makes every call of the interface once, with arguments that the fake machine accepts.
void make_every_call(const DeviceRuntime& runtime) {
  DeviceDescription description;
  MemoryFigures figures;
  PointerAttributes attributes;
  void* memory = nullptr;
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
  bool capturing = true;
  char source[16] = "fifteen letters";
  EXPECT_TRUE(runtime.describe(0, &description).ok());
  EXPECT_TRUE(runtime.memory_figures(0, &figures).ok());
  bool is_fast = true;
  EXPECT_TRUE(runtime.has_fast_link(0, 0, &is_fast).ok());
  EXPECT_TRUE(runtime.allocate_managed(0, kPageBytes, &memory).ok());
  EXPECT_TRUE(runtime.pointer_attributes(memory, &attributes).ok());
  EXPECT_TRUE(runtime.create_stream(0, &stream).ok());
  EXPECT_TRUE(runtime.advise(0, memory, kPageBytes, Advice::kSetAccessedBy, Place::device(0)).ok());
  EXPECT_TRUE(runtime.prefetch(0, memory, kPageBytes, Place::device(0), stream).ok());
  EXPECT_TRUE(runtime.discard(0, memory, kPageBytes, stream).ok());
  const std::vector<RangeMove> moves{{memory, kPageBytes, Place::device(0)}};
  EXPECT_TRUE(runtime.prefetch_batch(0, moves, stream).ok());
  EXPECT_TRUE(runtime.discard_batch(0, moves, stream).ok());
  EXPECT_TRUE(runtime.discard_and_prefetch_batch(0, moves, stream).ok());
  EXPECT_TRUE(runtime.copy(0, memory, source, sizeof source, stream).ok());
  EXPECT_STREQ(static_cast<char*>(memory), source);
  EXPECT_TRUE(runtime.is_capturing(0, stream, &capturing).ok());
  EXPECT_FALSE(capturing);
  EXPECT_TRUE(runtime.create_event(0, &event).ok());
  EXPECT_TRUE(runtime.record_event(0, event, stream).ok());
  EXPECT_TRUE(runtime.stream_wait_event(0, stream, event).ok());
  EXPECT_TRUE(runtime.query_event(0, event).ok());
  EXPECT_TRUE(runtime.synchronize_event(0, event).ok());
  EXPECT_TRUE(runtime.synchronize_stream(0, stream).ok());
  EXPECT_TRUE(runtime.synchronize_device(0).ok());
  EXPECT_TRUE(runtime.destroy_event(0, event).ok());
  EXPECT_TRUE(runtime.destroy_stream(0, stream).ok());
  EXPECT_TRUE(runtime.allow_coarse_grain(0, memory, kPageBytes).ok());
  EXPECT_TRUE(runtime.free_managed(0, memory).ok());
}

TEST(CountingRuntime, TheRuntimeSaysWhetherADeviceHasAContextAndTheCallIsNotCounted) {
  // A runtime that says nothing about contexts has none, and takes work at any time.
  CountingRuntime runtime(std::make_unique<FakeRuntime>(std::make_shared<FakeMachine>(1)));
  EXPECT_TRUE(runtime.has_context(0));
  EXPECT_TRUE(runtime.calls().empty());
}

TEST(CountingRuntime, EveryCallIsForwardedAndCountedOnceUnderItsOwnName) {
  const auto machine = std::make_shared<FakeMachine>(3);
  machine->capabilities.batches = true;
  CountingRuntime runtime(std::make_unique<FakeRuntime>(machine));
  EXPECT_EQ(runtime.name(), "fake");
  EXPECT_EQ(runtime.device_count(), 3);
  EXPECT_TRUE(runtime.calls().empty()) << "neither of these asks the machine";
  make_every_call(runtime);
  std::map<std::string, std::uint64_t> expected;
  for (const char* call : {"describe",
                           "memory_figures",
                           "has_fast_link",
                           "pointer_attributes",
                           "allocate_managed",
                           "free_managed",
                           "allow_coarse_grain",
                           "advise",
                           "prefetch",
                           "discard",
                           "prefetch_batch",
                           "discard_batch",
                           "discard_and_prefetch_batch",
                           "copy",
                           "create_stream",
                           "destroy_stream",
                           "synchronize_stream",
                           "stream_wait_event",
                           "is_capturing",
                           "create_event",
                           "destroy_event",
                           "record_event",
                           "query_event",
                           "synchronize_event",
                           "synchronize_device"}) {
    expected[call] = 1;
  }
  EXPECT_EQ(runtime.calls(), expected);
}

TEST(CountingRuntime, AFailedCallIsCountedToo) {
  auto machine = std::make_shared<FakeMachine>();
  CountingRuntime runtime(std::make_unique<FakeRuntime>(machine));
  machine->failures["allocate_managed"] = 1;
  void* memory = nullptr;
  EXPECT_EQ(runtime.allocate_managed(0, kPageBytes, &memory).error, RuntimeError::kOutOfMemory);
  EXPECT_EQ(runtime.calls().at("allocate_managed"), 1u);
}

}  // namespace
}  // namespace uvm
