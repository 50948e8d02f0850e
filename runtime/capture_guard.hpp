// Between captures of streams and our own calls that would invalidate them. A wait for a device,
// and an event recorded on a stream, are harmless before a capture begins and end it afterwards. So
// one guard of the process stands between the beginning of a capture and these calls: whoever asks
// "does anything capture?" and then waits does both in one Hold, in which no capture begins.
// Thread-safe. Held across driver calls.
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

  // While one exists no capture begins. Not taken in a forked child, where nothing may be called.
  class UVM_SCOPED_CAPABILITY Hold {
   public:
    explicit Hold(CaptureGuard& guard) UVM_NOT_ANALYSED : guard_(guard) {
      guard_.mutex_.lock_shared();
    }
    ~Hold() UVM_NOT_ANALYSED { guard_.mutex_.unlock_shared(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // Whether anything captures: then no device may be waited for.
    bool captures() const { return guard_.any(); }

   private:
    CaptureGuard& guard_;
  };

  // Around the call that begins a capture. Waits until the calls of ours that have begun are over.
  class UVM_SCOPED_CAPABILITY Beginning {
   public:
    explicit Beginning(CaptureGuard& guard) UVM_NOT_ANALYSED : guard_(guard) {
      guard_.mutex_.lock();
    }
    ~Beginning() UVM_NOT_ANALYSED { guard_.mutex_.unlock(); }
    Beginning(const Beginning&) = delete;
    Beginning& operator=(const Beginning&) = delete;
    // A capture has begun, or will do so before end() is called.
    void begun() { guard_.open_.fetch_add(1, std::memory_order_relaxed); }

   private:
    CaptureGuard& guard_;
  };

  // A capture that was noted as begun has ended.
  void end() noexcept { open_.fetch_sub(1, std::memory_order_relaxed); }
  bool any() const noexcept { return open_.load(std::memory_order_relaxed) != 0; }

 private:
  constexpr CaptureGuard() = default;

  Ranked<std::shared_mutex, LockRank::kCaptures> mutex_;
  std::atomic<std::size_t> open_ = 0;
};

}  // namespace uvm
