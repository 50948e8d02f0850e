// Measures the time since start, and the part of it in which the calling thread waited for a
// processor (schedstat's run delay). On a busy machine that part is not the allocator's fault.
// Waits for locks and for the driver do count. If Linux has no schedstat, the delay is 0. Start and
// read on the same thread; reading takes a few microseconds, so samples last milliseconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>

namespace uvm::bench {

class Stopwatch {
 public:
  Stopwatch() : waited_ns_(waited_ns()), start_(Clock::now()) {}

  struct Lap {
    double wall_ns = 0;
    double delay_ns = 0;  // ready, but without a processor

    double running_ns() const { return wall_ns - delay_ns; }
  };
  Lap lap() const {
    const std::chrono::duration<double, std::nano> passed = Clock::now() - start_;
    return {passed.count(), static_cast<double>(waited_ns() - waited_ns_)};
  }
  double running_ns() const { return lap().running_ns(); }

 private:
  using Clock = std::chrono::steady_clock;

  static std::uint64_t waited_ns() {
    unsigned long long ran = 0, waited = 0;
    if (std::FILE* file = std::fopen("/proc/thread-self/schedstat", "re")) {
      if (std::fscanf(file, "%llu %llu", &ran, &waited) != 2) waited = 0;
      std::fclose(file);
    }
    return waited;
  }

  std::uint64_t waited_ns_;
  Clock::time_point start_;
};

}  // namespace uvm::bench
