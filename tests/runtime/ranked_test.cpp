// If ranks are checked, a wrong order of locks or a line logged under a lock ends the process.
#include "runtime/ranked.hpp"

#include <gtest/gtest.h>

#include <mutex>

#include "runtime/log.hpp"

namespace uvm {
namespace {

#ifndef NDEBUG
Ranked<std::mutex, LockRank::kRelease> release;
Ranked<std::mutex, LockRank::kState> state;

TEST(RankedDeathTest, ALockThatIsTakenAfterALaterOneIsNamedWithIt) {
  {
    const std::lock_guard first(release);
    const std::lock_guard second(state);
  }
  EXPECT_DEATH(
      {
        state.lock();
        release.lock();
      },
      "lock 'release' is taken while 'state' is held, but 'release' has to be taken first");
}

TEST(RankedDeathTest, ALineMayBeWrittenWithALockThatMayWaitAndWithNoOther) {
  {
    const std::lock_guard lock(release);
    log_line(LogLevel::kError, "with the lock 'release'");
  }
  EXPECT_DEATH(
      {
        state.lock();
        log_line(LogLevel::kError, "the state");
      },
      "the state\nuvmalloc: the line above is written with a lock of the allocator held");
}
#endif

}  // namespace
}  // namespace uvm
