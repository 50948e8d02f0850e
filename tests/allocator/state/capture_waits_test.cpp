// No wait for a device falls into a capture, whichever thread begins the capture.
#include "runtime/capture_guard.hpp"

#include "tests/support/allocator_fixture.hpp"
#include "tests/support/waiting_thread.hpp"

namespace uvm::testing {
namespace {

class CaptureWaits : public AllocatorTest {
 protected:
  bool has_waited() const {
    return std::ranges::any_of(machine->waits, [](const std::string& wait) {
      return wait.starts_with("host waits for device");
    });
  }
};

TEST_F(CaptureWaits, ACaptureBeginsAfterTheWaitOfARelease) {
  start(without_thread_caches());
  allocator->free(device(4 * kMiB));
  std::unique_ptr<WaitingThread> other;
  machine->after_device_wait = [&] {
    other = std::make_unique<WaitingThread>(
        [] { CaptureGuard::Beginning(CaptureGuard::of_process()).begun(); });
    // This code runs inside the call that waits for the device, so the wait is still in progress.
    EXPECT_TRUE(other->waits());
    EXPECT_FALSE(CaptureGuard::of_process().any());
  };
  allocator->release_cached();
  ASSERT_NE(other, nullptr);
  other->join();
  CaptureGuard::of_process().end();
}

TEST_F(CaptureWaits, APoolThatAThreadOpensForACaptureWaitsToo) {
  start(without_thread_caches());
  allocator->free(device(4 * kMiB));
  std::unique_ptr<WaitingThread> other;
  machine->after_device_wait = [&] {
    other = std::make_unique<WaitingThread>([&] {
      allocator->private_pools().begin(
          0, 7, [](StreamHandle) { return false; }, true);
    });
    EXPECT_TRUE(other->waits());
  };
  allocator->release_cached();
  ASSERT_NE(other, nullptr);
  other->join();
  EXPECT_TRUE(allocator->private_pools().end(0, 7));
  EXPECT_TRUE(allocator->private_pools().release(0, 7));
  EXPECT_FALSE(CaptureGuard::of_process().any());
}

TEST_F(CaptureWaits, WhileSomethingCapturesNoDeviceIsWaitedFor) {
  CaptureGuard::Beginning(CaptureGuard::of_process()).begun();
  EXPECT_FALSE(allocator->streams().wait_for_device(0));
  allocator->free(device(4 * kMiB));
  allocator->release_cached();
  EXPECT_FALSE(has_waited());
  CaptureGuard::of_process().end();
  EXPECT_TRUE(allocator->streams().wait_for_device(0));
  EXPECT_TRUE(has_waited());
}

TEST_F(CaptureWaits, ScopesThatAreOpenAtTheEndOfAnAllocatorCaptureNoMore) {
  allocator->private_pools().begin(
      0, 7, [](StreamHandle) { return false; }, true);
  EXPECT_TRUE(CaptureGuard::of_process().any());
  allocator.reset();
  EXPECT_FALSE(CaptureGuard::of_process().any());
}

TEST_F(CaptureWaits, AWaitForACapturedStreamIsOneForItsWorkBeforeTheCapture) {
  char* moved = host(8 * kMiB);
  to_device(moved, stream(1));
  const DeviceStream captured{0, stream(1), 0};
  allocator->streams().begin_capture(captured);
  machine->capturing = {stream(1)};
  machine->busy = {stream(1)};
  machine->waits.clear();
  allocator->streams().wait_for_uses(moved);
  EXPECT_TRUE(machine->waits.empty()) << machine->waits[0];
  EXPECT_EQ(machine->busy.count(stream(1)), 0u) << "it waits for the event before the capture";

  machine->capturing.clear();
  allocator->streams().end_capture(captured);
  machine->waits.clear();
  allocator->streams().wait_for_uses(moved);
  ASSERT_EQ(machine->waits.size(), 1u);
  EXPECT_TRUE(machine->waits[0].starts_with("host waits for stream")) << machine->waits[0];
}

}  // namespace
}  // namespace uvm::testing
