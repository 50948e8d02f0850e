// The clock by which a CreditGate detects late actors. Tests pass in their own clocks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace uvm {

class CreditClock {
 public:
  using Time = std::chrono::nanoseconds;
  virtual ~CreditClock() = default;

  virtual Time now() const = 0;
  // Waits until `changed` is notified or, if `until` is given, until that time. May return early.
  // The caller holds `lock` before and after the call.
  virtual void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                    std::optional<Time> until) = 0;
};

class SteadyCreditClock final : public CreditClock {
 public:
  Time now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
            std::optional<Time> until) override {
    if (until) {
      changed.wait_until(lock, std::chrono::steady_clock::time_point(*until));
    } else {
      changed.wait(lock);
    }
  }
};

}  // namespace uvm
