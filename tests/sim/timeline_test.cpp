// Virtual time.
#include <set>
#include <thread>

#include "machine_test.hpp"

namespace uvmsim::test {
namespace {

class TimelineTest : public MachineTest {
 protected:
  Status kernel(StreamHandle stream, std::uint64_t duration_ns) {
    return machine().work().kernel(0, stream, {}, duration_ns);
  }
};

TEST_F(TimelineTest, WorkAdvancesTheStreamAndAWaitTheClock) {
  const std::uint64_t start = uvmsim_now_ns();
  ASSERT_EQ(kernel(stream_, 700), Status::kOk);
  ASSERT_EQ(kernel(stream_, 300), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), start);
  ASSERT_EQ(machine().streams().wait_for_stream(0, stream_), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), start + 1000);
  EXPECT_EQ(machine().streams().query_stream(0, stream_), Status::kOk);
}

TEST_F(TimelineTest, AQueryOfUnfinishedWorkCosts1000Nanoseconds) {
  const std::uint64_t start = uvmsim_now_ns();
  ASSERT_EQ(kernel(stream_, 2500), Status::kOk);
  EXPECT_EQ(machine().streams().query_stream(0, stream_), Status::kNotReady);
  EXPECT_EQ(machine().streams().query_stream(0, stream_), Status::kNotReady);
  EXPECT_EQ(machine().streams().query_stream(0, stream_), Status::kNotReady);
  EXPECT_EQ(machine().streams().query_stream(0, stream_), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), start + 3000);
}

TEST_F(TimelineTest, AKernelOfOperationsTakesWhatTheCostModelSaysOfItsRanges) {
  const std::byte* memory = device_memory(0, 2 * kBlock);
  const uvmsim_access ranges[] = {{memory, kBlock, UVMSIM_READ | UVMSIM_WRITE},
                                  {memory + kBlock, kPage, UVMSIM_READ}};
  const uvmsim_arithmetic whole{.operations = 1000, .type = UVMSIM_FLOAT32, .continues = 0};
  const uvmsim_arithmetic part{.operations = 0, .type = UVMSIM_FLOAT32, .continues = 1};
  const std::uint64_t modelled_ns = uvmsim_kernel_ns(2 * kBlock + kPage, 1000, UVMSIM_FLOAT32);
  const std::uint64_t launch_ns = uvmsim_kernel_ns(0, 0, UVMSIM_FLOAT32);
  const auto taken = [&](const uvmsim_arithmetic& arithmetic) {
    const std::uint64_t start = uvmsim_now_ns();
    EXPECT_EQ(uvmsim_kernel_arithmetic(0, stream_, ranges, 2, &arithmetic), UVMSIM_OK);
    EXPECT_EQ(machine().streams().wait_for_stream(0, stream_), Status::kOk);
    return uvmsim_now_ns() - start;
  };
  EXPECT_GT(launch_ns, 0U);
  EXPECT_EQ(taken(whole), modelled_ns);
  EXPECT_EQ(taken(part), modelled_ns - launch_ns);
  const uvmsim_arithmetic unknown{.operations = 1, .type = 5, .continues = 0};
  EXPECT_EQ(uvmsim_kernel_arithmetic(0, stream_, ranges, 2, &unknown), UVMSIM_ERROR_INVALID);
  EXPECT_EQ(uvmsim_kernel_arithmetic(0, stream_, ranges, 2, nullptr), UVMSIM_ERROR_INVALID);
}

TEST_F(TimelineTest, ACallThatEvictsWaitsForIt) {
  const std::byte* memory = managed(kCapacity);
  ASSERT_EQ(prefetch(memory, kCapacity, 0), Status::kOk);
  ASSERT_EQ(machine().streams().wait_for_device(0), Status::kOk);
  const std::uint64_t start = uvmsim_now_ns();
  device_memory(0, kBlock);
  const std::uint64_t end = uvmsim_now_ns();
  EXPECT_EQ(end - start, (kBlock + 49) / 50) << "2 MiB at 50 GB/s";
  ASSERT_EQ(kernel(stream_, 10), Status::kOk);
  ASSERT_EQ(machine().streams().wait_for_stream(0, stream_), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), end + 10);
}

TEST_F(TimelineTest, AdvanceFinishesWork) {
  ASSERT_EQ(kernel(stream_, 2500), Status::kOk);
  uvmsim_advance_ns(2500);
  EXPECT_EQ(machine().streams().query_stream(0, stream_), Status::kOk);
}

TEST_F(TimelineTest, EventsOrderStreamsAndMeasureTime) {
  StreamHandle other = machine().streams().create_stream(0, 0, false, 0);
  EventHandle before = machine().streams().create_event(0, 0, true);
  EventHandle after = machine().streams().create_event(0, 0, true);
  ASSERT_EQ(machine().streams().record_event(0, before, stream_), Status::kOk);
  ASSERT_EQ(kernel(stream_, 5000), Status::kOk);
  EventHandle done = machine().streams().create_event(0, 0, true);
  ASSERT_EQ(machine().streams().record_event(0, done, stream_), Status::kOk);
  ASSERT_EQ(machine().streams().make_stream_wait(0, other, done), Status::kOk);
  ASSERT_EQ(kernel(other, 100), Status::kOk);
  ASSERT_EQ(machine().streams().record_event(0, after, other), Status::kOk);

  std::int64_t elapsed_ns = 0;
  EXPECT_EQ(machine().streams().elapsed(before, after, &elapsed_ns), Status::kNotReady);
  ASSERT_EQ(machine().streams().wait_for_event(after), Status::kOk);
  ASSERT_EQ(machine().streams().elapsed(before, after, &elapsed_ns), Status::kOk);
  EXPECT_EQ(elapsed_ns, 5100);
  ASSERT_EQ(machine().streams().elapsed(after, before, &elapsed_ns), Status::kOk);
  EXPECT_EQ(elapsed_ns, -5100);
  for (EventHandle event : {before, done, after})
    EXPECT_EQ(machine().streams().destroy_event(event), Status::kOk);
  EXPECT_EQ(machine().streams().destroy_stream(other), Status::kOk);
}

TEST_F(TimelineTest, AnEventThatWasNeverRecordedIsComplete) {
  EventHandle event = machine().streams().create_event(0, 0, false);
  EXPECT_EQ(machine().streams().query_event(event), Status::kOk);
  EXPECT_EQ(machine().streams().wait_for_event(event), Status::kOk);
  std::int64_t elapsed_ns = 0;
  EXPECT_EQ(machine().streams().elapsed(event, event, &elapsed_ns), Status::kInvalidHandle);
  machine().streams().destroy_event(event);
  EXPECT_EQ(machine().streams().query_event(event), Status::kInvalidHandle);
}

TEST_F(TimelineTest, NoTimeElapsesBetweenEventsOfTwoDevices) {
  EventHandle here = machine().streams().create_event(0, 0, true);
  EventHandle there = machine().streams().create_event(1, 0, true);
  ASSERT_EQ(machine().streams().record_event(0, here, nullptr), Status::kOk);
  ASSERT_EQ(machine().streams().record_event(1, there, nullptr), Status::kOk);
  std::int64_t elapsed_ns = 0;
  EXPECT_EQ(machine().streams().elapsed(here, here, &elapsed_ns), Status::kOk);
  EXPECT_EQ(machine().streams().elapsed(here, there, &elapsed_ns), Status::kInvalidHandle);
  EXPECT_EQ(machine().streams().elapsed(there, here, &elapsed_ns), Status::kInvalidHandle);
  machine().streams().destroy_event(here);
  machine().streams().destroy_event(there);
}

TEST_F(TimelineTest, TheDefaultStreamAndBlockingStreamsWaitForEachOther) {
  const std::uint64_t start = uvmsim_now_ns();
  StreamHandle blocking = machine().streams().create_stream(0, 0, true, 0);
  ASSERT_EQ(kernel(blocking, 1000), Status::kOk);
  ASSERT_EQ(kernel(stream_, 9000), Status::kOk);  // non-blocking, so it does not wait
  ASSERT_EQ(kernel(nullptr, 500), Status::kOk);
  ASSERT_EQ(kernel(blocking, 10), Status::kOk);
  ASSERT_EQ(machine().streams().wait_for_stream(0, blocking), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), start + 1510);
  machine().streams().wait_for_device(0);
  EXPECT_EQ(uvmsim_now_ns(), start + 9000);
  machine().streams().destroy_stream(blocking);
}

TEST_F(TimelineTest, WorkOfADestroyedStreamGoesOn) {
  const std::uint64_t start = uvmsim_now_ns();
  StreamHandle blocking = machine().streams().create_stream(0, 0, true, 0);
  StreamHandle other = machine().streams().create_stream(0, 0, false, 0);
  ASSERT_EQ(kernel(blocking, 1000), Status::kOk);
  ASSERT_EQ(kernel(other, 9000), Status::kOk);
  ASSERT_EQ(machine().streams().destroy_stream(blocking), Status::kOk);
  ASSERT_EQ(machine().streams().destroy_stream(other), Status::kOk);
  ASSERT_EQ(machine().streams().wait_for_stream(0, nullptr), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), start + 1000) << "only blocking streams order the default stream";
  machine().streams().wait_for_device(0);
  EXPECT_EQ(uvmsim_now_ns(), start + 9000);
}

TEST_F(TimelineTest, AThreadsDefaultStreamIsNoneOfAnEndedThread) {
  const StreamHandle per_thread = reinterpret_cast<StreamHandle>(2);
  std::set<std::uint64_t> streams;
  for (int i = 0; i < 8; ++i) {
    std::thread([&] { streams.insert(machine().streams().find_stream(0, per_thread)->id); }).join();
  }
  EXPECT_EQ(streams.size(), 8U);
}

TEST_F(TimelineTest, TransfersTakeTimeByTheirBytes) {
  // Makes the link idle, because an earlier test of this process may have evicted something.
  ASSERT_EQ(prefetch(managed(kBlock), kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().streams().wait_for_stream(0, stream_), Status::kOk);
  const std::uint64_t start = uvmsim_now_ns();
  const std::byte* memory = managed(kBlock);
  ASSERT_EQ(prefetch(memory, kBlock, 0), Status::kOk);
  ASSERT_EQ(machine().streams().wait_for_stream(0, stream_), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), start) << "populating copies nothing";
  ASSERT_EQ(prefetch(memory, kBlock, UVMSIM_HOST), Status::kOk);
  ASSERT_EQ(machine().streams().wait_for_stream(0, stream_), Status::kOk);
  EXPECT_EQ(uvmsim_now_ns(), start + (kBlock + 49) / 50);
}

TEST_F(TimelineTest, UnknownHandlesAreInvalid) {
  int local = 0;
  EXPECT_EQ(machine().streams().query_stream(0, &local), Status::kInvalidHandle);
  EXPECT_EQ(machine().streams().destroy_stream(nullptr), Status::kInvalidHandle);
  EXPECT_EQ(machine().streams().record_event(0, &local, stream_), Status::kInvalidHandle);
  EXPECT_EQ(uvmsim_kernel(1, stream_, nullptr, 0, 1), UVMSIM_ERROR_INVALID)
      << "another device's stream";
}

}  // namespace
}  // namespace uvmsim::test
