// The guard keeps the beginning of a capture apart from calls that would invalidate the capture.
#include <gtest/gtest.h>

#include "runtime/capture_guard.hpp"

#include "tests/support/waiting_thread.hpp"

namespace uvm {
namespace {

CaptureGuard& guard() {
  return CaptureGuard::of_process();
}

TEST(CaptureGuardTest, ACaptureThatHasBegunIsSeenUntilItEnds) {
  EXPECT_FALSE(CaptureGuard::Hold(guard()).captures());
  CaptureGuard::Beginning(guard()).begun();
  EXPECT_TRUE(CaptureGuard::Hold(guard()).captures());
  guard().end();
  EXPECT_FALSE(CaptureGuard::Hold(guard()).captures());
}

TEST(CaptureGuardTest, ABeginningWaitsForTheHoldsOfAllThreads) {
  auto hold = std::make_unique<CaptureGuard::Hold>(guard());
  // Holds do not wait for each other.
  std::thread([] { EXPECT_FALSE(CaptureGuard::Hold(guard()).captures()); }).join();
  testing::WaitingThread other([] { const CaptureGuard::Beginning beginning(guard()); });
  EXPECT_TRUE(other.waits());
  hold.reset();
  other.join();
}

TEST(CaptureGuardTest, AHoldWaitsForABeginning) {
  auto beginning = std::make_unique<CaptureGuard::Beginning>(guard());
  bool captures = false;
  testing::WaitingThread other([&] { captures = CaptureGuard::Hold(guard()).captures(); });
  EXPECT_TRUE(other.waits());
  beginning->begun();
  beginning.reset();
  other.join();
  EXPECT_TRUE(captures);
  guard().end();
}

}  // namespace
}  // namespace uvm
