// The clock of traces: the processor's time stamp counter if the kernel trusts it, else
// CLOCK_MONOTONIC. read() is ordered after everything before it in program order, and before any
// later store that another thread sees. So times taken while a thread holds a block order the users
// of the block. Thread-safe; its only state is the kind of clock.
#pragma once

#include <time.h>

#include <cstdint>

#include "allocator/trace/trace_format.hpp"

namespace uvm {

class TraceClock {
 public:
  TraceClock();  // the best clock of this machine
  explicit TraceClock(TraceClockKind kind) : kind_(kind) {}

  TraceClockKind kind() const { return kind_; }

  std::uint64_t read() const noexcept {
#if defined(__x86_64__)
    if (kind_ == TraceClockKind::kTicks) {
      // The counter may be read before older loads are done; the fence waits for them. The builtins
      // spare every includer <immintrin.h>, 70,000 lines.
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
