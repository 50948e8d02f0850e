// How programs that share a device read the time and wait. The shared table contains times, so all
// programs of a machine use the same clock: this class. Tests override it. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace uvm::sharing {

class SharingClock {
 public:
  virtual ~SharingClock() = default;

  virtual std::uint64_t now_ns() const;
  virtual void sleep(std::chrono::nanoseconds time) const;
  // Returns if `word` differs from `seen`, if a program wakes those that wait for the word (futex),
  // or after `most`. May return early.
  virtual void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                               std::chrono::nanoseconds most) const;

  static const SharingClock& of_machine();
};

}  // namespace uvm::sharing
