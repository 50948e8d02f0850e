// A lock for what one thread uses all the time and others hardly ever: its owner takes it without
// an atomic read-modify-write or a fence, others pay for both sides with the membarrier system call
// (asymmetric Dekker, membarrier(2)). Where the system has no membarrier, and under
// ThreadSanitizer, which cannot see through it, the owner's side is a plain spin lock.
//
// The owner must not block while it holds the lock. Others exclude each other outside.
#pragma once

#include <atomic>
#include <span>

namespace uvm {

class OwnerLock {
 public:
  // By the owner only. Waits while another has it, which is short.
  [[gnu::always_inline]] void enter() {
    if (asymmetric_) [[likely]] {
      busy_.store(true, std::memory_order_relaxed);
      // Orders the store before the load in the instruction stream; the other side's membarrier
      // does it in the processor.
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (!taken_.load(std::memory_order_acquire)) [[likely]]
        return;
      enter_slowly();
    } else {
      spin();
    }
  }
  void leave() { busy_.store(false, std::memory_order_release); }

  // By anybody but the owner: all of them, with one barrier. Where the system does not give it any
  // more, the process is aborted with one line.
  static void take(std::span<OwnerLock* const> locks);
  static void give_back(std::span<OwnerLock* const> locks);

  // Nobody's, where whoever had it or asked for it is gone: in a forked child.
  void reset() {
    busy_.store(false, std::memory_order_relaxed);
    taken_.store(false, std::memory_order_relaxed);
  }

  // Chooses the kind, once per process, before the first lock is used.
  static void prepare();

  enum class Kind : unsigned char { kSymmetric, kAsymmetric };
  // The same for one kind, while no lock is in use. False: this system or build does not have it.
  static bool use(Kind kind);

 private:
  void enter_slowly();
  void spin();

  static bool asymmetric_;
  std::atomic<bool> busy_{false};   // the owner is inside, or, where symmetric, anybody
  std::atomic<bool> taken_{false};  // another has it or is about to
};

}  // namespace uvm
