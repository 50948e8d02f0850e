// A number that changes every two milliseconds while it runs, kept by a thread of its own: threads
// that record quickly learn from one load that time has passed, where the system's coarse clock
// would cost half of what an event costs. Late by what the system needs to run that thread. Where
// no thread can be had, the coarse clock serves. start() and stop() by one thread at a time.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include <uvmalloc/allocator/trace/trace_clock.hpp>

namespace uvm {

class TraceTicker {
 public:
  TraceTicker() = default;
  ~TraceTicker() { stop(); }
  TraceTicker(const TraceTicker&) = delete;
  TraceTicker& operator=(const TraceTicker&) = delete;

  // Any thread, at any time.
  std::uint64_t tick() const noexcept {
    const std::uint64_t tick = running_tick();
    return tick != kNone ? tick : TraceClock::coarse_tick();
  }
  bool counts() const noexcept { return running_tick() != kNone; }  // the thread, that is
  // The same where the thread runs, else a number that tick() never gives.
  std::uint64_t running_tick() const noexcept { return tick_.load(std::memory_order_relaxed); }

  void start() noexcept;
  // Waits for the thread, which may take one period.
  void stop() noexcept;
  // In a forked child, where the thread is not.
  void forget() noexcept;

  static constexpr long kPeriodNs = 2'000'000;

 private:
  static constexpr std::uint64_t kNone = 0;
  static void* run(void* self);

  std::atomic<std::uint64_t> tick_{kNone};
  std::atomic<bool> ends_{false};
  bool runs_ = false;
  pthread_t thread_{};
};

}  // namespace uvm
