// Keeps captures of streams and uvmalloc's own calls apart (Note "Captures"). Waiting for a device,
// or recording an event on a stream, is harmless before a capture begins, but invalidates a capture
// that has begun. So a caller takes a Hold, during which no capture begins, checks captures(), and
// then makes its call. The process has one guard, which is held across driver calls. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <shared_mutex>

#include "runtime/ranked.hpp"

namespace uvm {

class CaptureGuard {
 public:
  static CaptureGuard& of_process() {
    static constinit CaptureGuard guard;
    return guard;
  }

  // While a Hold exists, no capture begins. A forked child takes no Hold, because it calls no
  // driver.
  class UVM_SCOPED_CAPABILITY Hold {
   public:
    explicit Hold(CaptureGuard& guard) UVM_NOT_ANALYSED : guard_(guard) {
      guard_.mutex_.lock_shared();
    }
    ~Hold() UVM_NOT_ANALYSED { guard_.mutex_.unlock_shared(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // Returns whether a stream is being captured. If so, no call may wait for a device.
    bool captures() const { return guard_.any(); }

   private:
    CaptureGuard& guard_;
  };

  // Held around the call that begins a capture. Waits until every Hold has ended.
  class UVM_SCOPED_CAPABILITY Beginning {
   public:
    explicit Beginning(CaptureGuard& guard) UVM_NOT_ANALYSED : guard_(guard) {
      guard_.mutex_.lock();
    }
    ~Beginning() UVM_NOT_ANALYSED { guard_.mutex_.unlock(); }
    Beginning(const Beginning&) = delete;
    Beginning& operator=(const Beginning&) = delete;
    // Records that a capture has begun, or begins before end() is called.
    void begun() { guard_.open_.fetch_add(1, std::memory_order_relaxed); }

   private:
    CaptureGuard& guard_;
  };

  // Records the end of a capture that begun() recorded.
  void end() noexcept { open_.fetch_sub(1, std::memory_order_relaxed); }
  bool any() const noexcept { return open_.load(std::memory_order_relaxed) != 0; }

 private:
  constexpr CaptureGuard() = default;

  Ranked<std::shared_mutex, LockRank::kCaptures> mutex_;
  std::atomic<std::size_t> open_ = 0;
};

}  // namespace uvm
