// The clock of traces: the processor's time stamp counter where the kernel itself trusts it, else
// CLOCK_MONOTONIC. read() is ordered after everything before it in program order, and before any
// store after it that another thread sees: a time taken while a block is held, by whoever frees it
// or has just got it, orders the block's users. Holds its kind only; thread-safe.
#pragma once

#include <time.h>

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <uvmalloc/allocator/trace/trace_format.hpp>

namespace uvm {

class TraceClock {
 public:
  TraceClock();  // the best there is
  explicit TraceClock(TraceClockKind kind) : kind_(kind) {}

  TraceClockKind kind() const { return kind_; }

  std::uint64_t read() const noexcept {
#if defined(__x86_64__)
    if (kind_ == TraceClockKind::kTicks) {
      // The counter may be read before older loads are done: the fence waits for them.
      _mm_lfence();
      return __rdtsc();
    }
#endif
    return monotonic_ns();
  }

  static std::uint64_t monotonic_ns() noexcept {
    return nanoseconds(CLOCK_MONOTONIC);
  }

  static std::uint64_t nanoseconds(clockid_t clock) noexcept {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(now.tv_nsec);
  }

 private:
  TraceClockKind kind_;
};

}  // namespace uvm
