// Freed addresses that the plans have not processed yet, in order. A free only adds its address,
// under a lock that is held for a few instructions, so it never waits while a plan decides. The
// next decision processes these addresses first, so that the plans know a new block at the same
// address as a new block.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/ranked.hpp"

namespace uvm {

class WaitingFrees {
 public:
  // Returns how many addresses wait.
  std::size_t add(std::uintptr_t address) {
    const RankedGuard lock(mutex_);
    addresses_.push_back(address);
    count_.store(addresses_.size(), std::memory_order_relaxed);
    return addresses_.size();
  }

  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }

  // Moves the addresses to `out`, which becomes the memory for later ones.
  void take(std::vector<std::uintptr_t>* out) {
    out->clear();
    const RankedGuard lock(mutex_);
    std::swap(addresses_, *out);
    count_.store(0, std::memory_order_relaxed);
  }

 private:
  Ranked<std::mutex, LockRank::kFrees> mutex_;
  std::vector<std::uintptr_t> addresses_ UVM_GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};  // of addresses_; written with the lock
};

}  // namespace uvm
