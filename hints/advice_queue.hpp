// Advice that the runtime refuses while a stream is captured, to be sent when it accepts advice
// again. The order of advice is kept: once there is some, later advice waits behind it.
//
// Thread-safe. The lock guards the queue and is never held across a driver call. Takes no memory
// after construction.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "hints/hint.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class AdviceQueue {
 public:
  struct Entry {
    Hint hint;
    int device = 0;  // in whose context the advice is sent
  };
  static constexpr std::size_t kMostEntries = 256;

  bool is_empty() const { return size_.load(std::memory_order_relaxed) == 0; }

  // False, with nothing noted, where the queue is full.
  bool push(const Entry& entry) noexcept;

  // Calls `send(entry)`, which returns false where the runtime still refuses, for each entry in
  // their order until the queue is empty or one is refused. Only one thread does so at a time;
  // another one returns at once.
  template <class Send>
  void flush(Send send) {
    if (is_empty() || flushing_.exchange(true, std::memory_order_acquire)) return;
    Entry entry;
    while (front(&entry) && send(entry)) pop();
    flushing_.store(false, std::memory_order_release);
  }

  // In a forked child.
  void abandon() noexcept { size_.store(0, std::memory_order_relaxed); }

 private:
  bool front(Entry* out);
  void pop();

  std::atomic<bool> flushing_{false};
  std::atomic<std::size_t> size_{0};            // written with the lock
  Ranked<std::mutex, LockRank::kLanes> mutex_;  // guards the rest
  std::size_t first_ = 0;
  std::array<Entry, kMostEntries> entries_;
};

}  // namespace uvm
