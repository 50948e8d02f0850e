// What every DeviceRuntime must do.
#include <chrono>
#include <cstring>
#include <thread>

#include "allocator/spans/host_backing.hpp"

#include "tests/conformance/runtimes.hpp"

#include "tests/support/sizes.hpp"

namespace uvm {
namespace {

class RuntimeConformance : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<DeviceRuntime> runtime = testing::open(GetParam());
  DeviceDescription description;
  StreamHandle stream = nullptr;

  void SetUp() override {
    ASSERT_TRUE(runtime->describe(0, &description).ok());
    ASSERT_TRUE(runtime->create_stream(0, &stream).ok());
  }
  void TearDown() override { EXPECT_TRUE(runtime->destroy_stream(0, stream).ok()); }

  char* managed(std::size_t size_bytes) {
    void* address = nullptr;
    RuntimeStatus status = runtime->allocate_managed(0, size_bytes, &address);
    EXPECT_TRUE(status.ok()) << status.text();
    return static_cast<char*>(address);
  }
  // Returns the machine behind the fake runtime, or nullptr if the runtime is another.
  testing::FakeMachine* fake_machine() const {
    const auto* fake = dynamic_cast<const testing::FakeRuntime*>(runtime.get());
    return fake != nullptr ? &fake->machine() : nullptr;
  }
};

TEST_P(RuntimeConformance, ItHasItsNameAndADeviceThatUvmallocCanUse) {
  EXPECT_EQ(runtime->name(), GetParam());
  ASSERT_GE(runtime->device_count(), 1);
  EXPECT_FALSE(description.name.empty());
  EXPECT_GT(description.total_bytes, 0u);
  EXPECT_TRUE(description.capabilities.migrates_on_fault);
}

TEST_P(RuntimeConformance, LargeManagedMemoryIsAlignedReadableAndWritableByTheHost) {
  char* memory = managed(8 * kMiB);
  EXPECT_EQ(address_of(memory) % kPageBytes, 0u);
  std::memset(memory, 7, 8 * kMiB);
  EXPECT_EQ(memory[8 * kMiB - 1], 7);
  EXPECT_TRUE(runtime->free_managed(0, memory).ok());
}

TEST_P(RuntimeConformance, HintsKeepTheBytes) {
  char* memory = managed(4 * kMiB);
  std::memset(memory, 9, 4 * kMiB);
  EXPECT_TRUE(
      runtime->advise(0, memory, 4 * kMiB, Advice::kSetPreferredLocation, Place::device(0)).ok());
  EXPECT_TRUE(runtime->prefetch(0, memory, 4 * kMiB, Place::device(0), stream).ok());
  EXPECT_TRUE(runtime->prefetch(0, memory, 4 * kMiB, Place::host(), stream).ok());
  EXPECT_TRUE(runtime->advise(0, memory, 4 * kMiB, Advice::kSetAccessedBy, Place::device(0)).ok());
  EXPECT_TRUE(
      runtime->advise(0, memory, 4 * kMiB, Advice::kUnsetPreferredLocation, Place::host()).ok());
  EXPECT_TRUE(runtime->synchronize_stream(0, stream).ok());
  EXPECT_EQ(memory[0], 9);
  EXPECT_EQ(memory[4 * kMiB - 1], 9);
  runtime->free_managed(0, memory);
}

TEST_P(RuntimeConformance, DiscardedMemoryCanBeWrittenAgainWhereDiscardIsOffered) {
  char* memory = managed(4 * kMiB);
  std::memset(memory, 5, 4 * kMiB);
  RuntimeStatus status = runtime->discard(0, memory, 2 * kMiB, stream);
  if (description.capabilities.discard) {
    EXPECT_TRUE(status.ok()) << status.text();
  } else {
    EXPECT_EQ(status.error, RuntimeError::kNotSupported);
  }
  EXPECT_TRUE(runtime->prefetch(0, memory, 4 * kMiB, Place::device(0), stream).ok());
  EXPECT_TRUE(runtime->synchronize_stream(0, stream).ok());
  std::memset(memory, 6, 2 * kMiB);
  EXPECT_EQ(memory[0], 6);
  EXPECT_EQ(memory[2 * kMiB], 5) << "beyond the discarded part";
  runtime->free_managed(0, memory);
}

TEST_P(RuntimeConformance, ABatchMovesAllItsRangesWhereBatchesAreOffered) {
  char* memory = managed(8 * kMiB);
  std::memset(memory, 5, 8 * kMiB);
  const std::vector<RangeMove> moves{{memory, 2 * kMiB, Place::device(0)},
                                     {memory + 4 * kMiB, 2 * kMiB, Place::device(0)},
                                     {memory + 2 * kMiB, 2 * kMiB, Place::host()}};
  const std::vector<RangeMove> dropped{{memory + 6 * kMiB, 2 * kMiB, Place::device(0)}};
  const RuntimeStatus statuses[] = {runtime->prefetch_batch(0, moves, stream),
                                    runtime->discard_and_prefetch_batch(0, dropped, stream),
                                    runtime->discard_batch(0, dropped, stream)};
  for (const RuntimeStatus& status : statuses) {
    if (description.capabilities.batches) {
      EXPECT_TRUE(status.ok()) << status.text();
    } else {
      EXPECT_EQ(status.error, RuntimeError::kNotSupported) << status.text();
    }
  }
  EXPECT_TRUE(runtime->synchronize_stream(0, stream).ok());
  for (std::size_t at = 0; at < 6 * kMiB; at += kMiB) EXPECT_EQ(memory[at], 5);
  if (description.capabilities.batches) {
    const std::vector<RangeMove> too_many(DeviceRuntime::kMostBatchMoves + 1, moves[0]);
    EXPECT_EQ(runtime->prefetch_batch(0, too_many, stream).error, RuntimeError::kInvalidValue);
    EXPECT_EQ(runtime->prefetch_batch(0, {}, stream).error, RuntimeError::kInvalidValue);
  }
  runtime->free_managed(0, memory);
}

TEST_P(RuntimeConformance, OrdinaryMemoryTakesHintsAndCopiesWhereDevicesReachIt) {
  if (!description.capabilities.pageable_memory_access)
    GTEST_SKIP() << "the device does not reach ordinary memory";
  char* memory = static_cast<char*>(map_ordinary(4 * kMiB));
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 9, 4 * kMiB);
  EXPECT_TRUE(
      runtime->advise(0, memory, 4 * kMiB, Advice::kSetPreferredLocation, Place::host()).ok());
  EXPECT_TRUE(runtime->advise(0, memory, 4 * kMiB, Advice::kSetAccessedBy, Place::device(0)).ok());
  EXPECT_TRUE(runtime->prefetch(0, memory, 4 * kMiB, Place::device(0), stream).ok());
  char* copy = managed(4 * kMiB);
  EXPECT_TRUE(runtime->copy(0, copy, memory, 4 * kMiB, stream).ok());
  EXPECT_TRUE(runtime->prefetch(0, memory, 4 * kMiB, Place::host(), stream).ok());
  EXPECT_TRUE(runtime->synchronize_stream(0, stream).ok());
  EXPECT_EQ(copy[4 * kMiB - 1], 9);
  EXPECT_EQ(memory[4 * kMiB - 1], 9);
  PointerAttributes attributes;
  EXPECT_TRUE(runtime->pointer_attributes(memory, &attributes).ok());
  EXPECT_EQ(attributes.kind, PointerKind::kUnknown);
  runtime->free_managed(0, copy);
  unmap_ordinary(memory, 4 * kMiB);
}

TEST_P(RuntimeConformance, AnEventIsCompleteOnceTheWorkBeforeItIsDone) {
  constexpr std::size_t kBytes = 64 * kMiB;  // the copy takes longer than a query
  char* from = managed(kBytes);
  char* to = managed(kBytes);
  std::memset(from, 3, kBytes);
  std::memset(to, 0, kBytes);
  EventHandle event = nullptr;
  ASSERT_TRUE(runtime->create_event(0, &event).ok());
  testing::FakeMachine* const fake = fake_machine();
  if (fake != nullptr) fake->busy.insert(stream);
  EXPECT_TRUE(runtime->record_event(0, event, stream).ok());
  if (fake != nullptr) {
    EXPECT_EQ(runtime->query_event(0, event).error, RuntimeError::kNotReady);
  }
  EXPECT_TRUE(runtime->synchronize_event(0, event).ok());
  EXPECT_TRUE(runtime->query_event(0, event).ok());
  EXPECT_TRUE(runtime->copy(0, to, from, kBytes, stream).ok());
  EXPECT_TRUE(runtime->record_event(0, event, stream).ok());
  RuntimeStatus status = runtime->query_event(0, event);
  for (; status.error == RuntimeError::kNotReady; status = runtime->query_event(0, event))
    std::this_thread::yield();
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(to[kBytes - 1], 3);
  // The default stream waits for the event, and then copies the bytes that the first copy wrote.
  std::memset(from, 4, kBytes);
  EXPECT_TRUE(runtime->copy(0, to, from, kBytes / 2, stream).ok());
  EXPECT_TRUE(runtime->record_event(0, event, stream).ok());
  EXPECT_TRUE(runtime->stream_wait_event(0, nullptr, event).ok());
  EXPECT_TRUE(runtime->copy(0, to + kBytes / 2, to, kBytes / 2, nullptr).ok());
  EXPECT_TRUE(runtime->synchronize_stream(0, nullptr).ok());
  EXPECT_EQ(to[kBytes - 1], 4);
  EXPECT_TRUE(runtime->destroy_event(0, event).ok());
  runtime->free_managed(0, from);
  runtime->free_managed(0, to);
}

TEST_P(RuntimeConformance, EventsWithTimingTellTheTimeBetweenThem) {
  EventHandle before = nullptr;
  const RuntimeStatus made = runtime->create_timed_event(0, &before);
  std::chrono::nanoseconds time{0};
  if (made.error == RuntimeError::kNotSupported) {
    EXPECT_EQ(runtime->time_between(0, before, before, &time).error, RuntimeError::kNotSupported);
    return;
  }
  ASSERT_TRUE(made.ok());
  EventHandle after = nullptr;
  ASSERT_TRUE(runtime->create_timed_event(0, &after).ok());
  char* memory = managed(32 * kMiB);
  std::memset(memory, 1, 32 * kMiB);  // so that the prefetch has bytes to move
  EXPECT_TRUE(runtime->record_event(0, before, stream).ok());
  EXPECT_TRUE(runtime->prefetch(0, memory, 32 * kMiB, Place::device(0), stream).ok());
  EXPECT_TRUE(runtime->record_event(0, after, stream).ok());
  EXPECT_TRUE(runtime->synchronize_event(0, after).ok());
  EXPECT_TRUE(runtime->time_between(0, before, after, &time).ok());
  // A machine without a cost model takes no time.
  EXPECT_GE(time, std::chrono::nanoseconds(0));
  std::chrono::nanoseconds back{1};
  EXPECT_TRUE(runtime->time_between(0, after, before, &back).ok());
  EXPECT_EQ(back, -time);
  runtime->free_managed(0, memory);
  EXPECT_TRUE(runtime->destroy_event(0, before).ok());
  EXPECT_TRUE(runtime->destroy_event(0, after).ok());
}

// CudaCapture covers captures on CUDA.
TEST_P(RuntimeConformance, OnlyAStreamInACaptureIsCapturing) {
  bool capturing = true;
  EXPECT_TRUE(runtime->is_capturing(0, nullptr, &capturing).ok());
  EXPECT_FALSE(capturing);
  if (testing::FakeMachine* fake = fake_machine(); fake != nullptr) {
    fake->capturing.insert(testing::stream(1));
    EXPECT_TRUE(runtime->is_capturing(0, testing::stream(1), &capturing).ok());
    EXPECT_TRUE(capturing);
    EXPECT_TRUE(runtime->is_capturing(0, nullptr, &capturing).ok());
    EXPECT_FALSE(capturing);
  }
}

TEST_P(RuntimeConformance, MoreThanThereIsIsOutOfMemoryAndNothingElse) {
  if (testing::on_real_device()) GTEST_SKIP() << "no test requests more than a real card has";
  void* address = nullptr;
  RuntimeStatus status = runtime->allocate_managed(0, std::size_t{1} << 46, &address);
  EXPECT_EQ(status.error, RuntimeError::kOutOfMemory) << status.text();
}

TEST_P(RuntimeConformance, MemoryThatIsNotItsOwnIsRefused) {
  int local = 0;
  EXPECT_FALSE(runtime->free_managed(0, &local).ok());
}

TEST_P(RuntimeConformance, AThreadThatNeverUsedTheDeviceMayFree) {
  char* memory = managed(2 * kMiB);
  std::thread([&] { EXPECT_TRUE(runtime->free_managed(0, memory).ok()); }).join();
}

INSTANTIATE_TEST_SUITE_P(Runtimes, RuntimeConformance, ::testing::ValuesIn(testing::kRuntimes),
                         [](const auto& test) { return std::string(test.param); });

TEST(RuntimeRegistry, AnUnknownNameSaysWhichThereAre) {
  RuntimeChoice choice = open_runtime("abacus");
  EXPECT_EQ(choice.runtime, nullptr);
  EXPECT_NE(choice.reason.find("abacus"), std::string::npos);
  EXPECT_NE(choice.reason.find("cuda"), std::string::npos);
}

TEST(RuntimeRegistry, ANameIsTakenOnceAndAutoNever) {
  auto none = [](std::string*) -> std::unique_ptr<DeviceRuntime> { return nullptr; };
  EXPECT_FALSE(add_runtime("cuda", none));
  EXPECT_FALSE(add_runtime("auto", none));
  EXPECT_FALSE(add_runtime("", none));
  EXPECT_FALSE(add_runtime("empty", nullptr));
}

TEST(CudaRuntime, ADeviceThatDoesNotExistIsNamedSo) {
  auto runtime = testing::open("cuda");
  void* address = nullptr;
  EXPECT_EQ(runtime->allocate_managed(99, 4096, &address).error, RuntimeError::kNoDevice);
  EXPECT_EQ(runtime->allocate_managed(-1, 4096, &address).error, RuntimeError::kNoDevice);
}

TEST(CudaRuntime, AttributesOfPointersAreReported) {
  auto runtime = testing::open("cuda");
  void* address = nullptr;
  ASSERT_TRUE(runtime->allocate_managed(0, 4096, &address).ok());
  PointerAttributes attributes;
  EXPECT_TRUE(runtime->pointer_attributes(address, &attributes).ok());
  EXPECT_EQ(attributes.kind, PointerKind::kManaged);
  EXPECT_EQ(attributes.device, 0);
  EXPECT_TRUE(runtime->pointer_attributes(&attributes, &attributes).ok());
  EXPECT_EQ(attributes.kind, PointerKind::kUnknown);
  runtime->free_managed(0, address);
}

}  // namespace
}  // namespace uvm
