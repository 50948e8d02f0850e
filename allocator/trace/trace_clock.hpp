// The clock of traces: the processor's time stamp counter if the kernel trusts the counter, else
// CLOCK_MONOTONIC. read() runs after everything before it in program order, and before any later
// store that another thread sees. So if threads read the clock while they hold a block, the times
// show in which order they held it. Thread-safe; the kind of clock is the only state.
#pragma once

#include <time.h>

#include <cstdint>

#include "allocator/trace/trace_format.hpp"

namespace uvm {

class TraceClock {
 public:
  TraceClock();  // chooses the best clock of this machine
  explicit TraceClock(TraceClockKind kind) : kind_(kind) {}

  TraceClockKind kind() const { return kind_; }

  std::uint64_t read() const noexcept {
#if defined(__x86_64__)
    if (kind_ == TraceClockKind::kTicks) {
      // The processor may read the counter before older loads are done, so a fence waits for them.
      // Builtins are used so that includers do not get <immintrin.h>, which has 70,000 lines.
      __builtin_ia32_lfence();
      return __builtin_ia32_rdtsc();
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
