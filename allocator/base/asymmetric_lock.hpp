// A lock for data that one thread, its owner, uses all the time and others hardly ever. The owner
// locks it without an atomic read-modify-write or a fence. Others pay for both sides with the
// membarrier system call (asymmetric Dekker, membarrier(2)). If the system has no membarrier, and
// under ThreadSanitizer, which does not see that call, the owner locks by an exchange.
//
// The owner must not block while it holds the lock, because others spin until it leaves. Another
// thread may hold it for long, such as around a fork that copies memory: the owner sleeps
// meanwhile. Other threads exclude each other by a mutex of their own.
#pragma once

#include <atomic>
#include <span>

namespace uvm {

class AsymmetricLock {
 public:
  // By the owner only. Waits while another thread has the lock.
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

  // By any thread but the owners: takes all these locks with one barrier. Aborts the process with
  // one line if the system refuses a barrier that it has given before.
  static void lock_all(std::span<AsymmetricLock* const> locks);
  static void unlock_all(std::span<AsymmetricLock* const> locks);

  // In a forked child: the threads that held it or waited for it are gone.
  void reset() {
    busy_.store(false, std::memory_order_relaxed);
    taken_.store(false, std::memory_order_relaxed);
  }

  // Chooses the kind, once per process, before the first lock is used.
  static void prepare();

  enum class Kind : unsigned char { kSymmetric, kAsymmetric };
  // The same for a given kind, while no lock is in use. False: this system or build lacks it.
  static bool use(Kind kind);

 private:
  void lock_owner_slow();
  void lock_symmetric();

  static bool asymmetric_;
  std::atomic<bool> busy_{false};   // the owner is inside; of the symmetric kind, any thread
  std::atomic<bool> taken_{false};  // another thread has it, or is about to
};

}  // namespace uvm
