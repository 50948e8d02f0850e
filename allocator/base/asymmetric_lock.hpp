// A lock for data that one thread, its owner, uses all the time and others hardly ever (Note
// "Asymmetric lock"). The owner locks it without an atomic read-modify-write or a fence. Others pay
// for both sides with the membarrier system call (asymmetric Dekker, membarrier(2)). If the system
// has no membarrier, and under ThreadSanitizer, which does not see that call, the owner locks by an
// exchange.
//
// The owner must not block while it holds the lock, because others spin until it unlocks. Another
// thread may hold the lock for long, for example around a fork that copies memory; the owner then
// sleeps. The callers of lock_all() exclude each other by a mutex of their own.
#pragma once

#include <atomic>
#include <span>

namespace uvm {

class AsymmetricLock {
 public:
  // Called by the owner only. Waits while another thread holds the lock.
  [[gnu::always_inline]] void lock_owner() {
    if (asymmetric_) [[likely]] {
      busy_.store(true, std::memory_order_relaxed);
      // Orders the store before the load in the instruction stream; the other side's membarrier
      // does it in the processor.
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (!taken_.load(std::memory_order_acquire)) [[likely]]
        return;
      lock_owner_slow();
    } else {
      lock_symmetric();
    }
  }
  void unlock_owner() { busy_.store(false, std::memory_order_release); }

  // Takes all these locks with one barrier. Called by any thread except their owners. Logs a line
  // and aborts the process if the barrier fails although earlier ones worked.
  static void lock_all(std::span<AsymmetricLock* const> locks);
  static void unlock_all(std::span<AsymmetricLock* const> locks);

  // Frees the lock in a forked child: threads that held it or waited for it do not exist there.
  void reset() {
    busy_.store(false, std::memory_order_relaxed);
    taken_.store(false, std::memory_order_relaxed);
  }

  // Chooses the kind of all locks, once per process, before the first is used.
  static void prepare();

  enum class Kind : unsigned char { kSymmetric, kAsymmetric };
  // Sets the kind of all locks, while none is in use. False if this system or build lacks the kind.
  static bool use(Kind kind);

 private:
  void lock_owner_slow();
  void lock_symmetric();

  static bool asymmetric_;
  std::atomic<bool> busy_{false};   // held by the owner; symmetric kind: by any thread
  std::atomic<bool> taken_{false};  // another thread holds the lock, or waits for the owner
};

}  // namespace uvm
