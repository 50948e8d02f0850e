// Advice that the runtime refused during a capture, kept until the runtime accepts advice again.
// Advice keeps its order: while the queue has entries, later advice is queued too.
//
// Thread-safe. The lock guards the queue and is never held across a driver call. Allocates nothing
// after construction.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "hints/hint.hpp"
#include "hints/policy.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class AdviceQueue {
 public:
  struct Entry {
    Hint hint;
    int device = 0;  // the advice is sent in the context of this device
  };

  bool is_empty() const { return size_.load(std::memory_order_relaxed) == 0; }

  // Returns false, without an effect, if the queue is full.
  bool push(const Entry& entry) noexcept;

  // Calls `send(entry)` for each entry in order until the queue is empty, or `send` returns false
  // because advice is still refused. Returns at once if another thread is flushing the queue.
  template <class Send>
  void flush(Send send) {
    if (is_empty() || flushing_.exchange(true, std::memory_order_acquire)) return;
    Entry entry;
    while (front(&entry) && send(entry)) pop();
    flushing_.store(false, std::memory_order_release);
  }

  // Called in a forked child: drops all entries.
  void abandon() noexcept { size_.store(0, std::memory_order_relaxed); }

 private:
  bool front(Entry* out);
  void pop();

  std::atomic<bool> flushing_{false};
  std::atomic<std::size_t> size_{0};            // written with the lock
  Ranked<std::mutex, LockRank::kLanes> mutex_;  // guards the members below
  std::size_t first_ = 0;
  std::array<Entry, policy::kMostWaitingAdvice> entries_;
};

}  // namespace uvm
