// A lock for data that one thread, the owner, uses all the time and other threads rarely use (Note
// "Asymmetric lock"). The owner locks without an atomic read-modify-write or a fence. Other threads
// issue the membarrier system call instead (asymmetric Dekker, membarrier(2)). Under
// ThreadSanitizer, or if the system has no membarrier, the owner locks by an atomic exchange.
//
// The owner must not block while it holds the lock, because other threads spin until the owner
// unlocks. Another thread may hold the lock for a long time, for example around a fork that copies
// memory; the owner then sleeps. The callers of lock_all() must exclude each other by a mutex of
// their own.
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
      // Keeps the compiler from moving the load before the store. The other thread's membarrier
      // does the same in the processor.
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (!taken_.load(std::memory_order_acquire)) [[likely]]
        return;
      lock_owner_slow();
    } else {
      lock_symmetric();
    }
  }
  void unlock_owner() { busy_.store(false, std::memory_order_release); }

  // Takes all these locks with one barrier. Any thread except the locks' owners may call this. Logs
  // a line and aborts the process if the barrier fails although earlier barriers worked.
  static void lock_all(std::span<AsymmetricLock* const> locks);
  static void unlock_all(std::span<AsymmetricLock* const> locks);

  // Frees the lock in a forked child, because the threads that held the lock or waited for it do
  // not exist in the child.
  void reset() {
    busy_.store(false, std::memory_order_relaxed);
    taken_.store(false, std::memory_order_relaxed);
  }

  // Chooses the kind of all locks, once per process, before the first is used.
  static void prepare();

  enum class Kind : unsigned char { kSymmetric, kAsymmetric };
  // Sets the kind of all locks while none is in use. Returns false if the kind is not available.
  static bool use(Kind kind);

 private:
  void lock_owner_slow();
  void lock_symmetric();

  static bool asymmetric_;
  std::atomic<bool> busy_{false};   // the owner holds the lock; if symmetric: any thread holds it
  std::atomic<bool> taken_{false};  // another thread holds the lock, or waits for the owner
};

}  // namespace uvm
