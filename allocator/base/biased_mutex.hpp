// A mutex for data that one thread uses most of the time. Once a thread has locked the mutex
// policy::kTurnsToBias times in a row, the mutex is biased to that thread, which then locks it
// without an atomic read-modify-write (AsymmetricLock). The next other thread that locks the mutex
// pays for a barrier and ends the bias.
//
// Only the first thread that qualifies may ever hold the bias. A thread can be pre-empted between
// reading `owner_` and entering `own_`, and resume arbitrarily later. If the bias could pass to
// another thread, two threads could then be inside `own_` at once.
//
// Meets BasicLockable. Not recursive.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "allocator/base/asymmetric_lock.hpp"
#include "runtime/ranked.hpp"

namespace uvm {

class BiasedMutex {
 public:
  [[gnu::always_inline]] void lock() {
    const void* self = this_thread();
    if (owner_.load(std::memory_order_relaxed) == self) [[likely]] {
      own_.lock_owner();
      // Another thread may have ended the bias meanwhile.
      if (owner_.load(std::memory_order_relaxed) == self) [[likely]] {
        by_owner_ = true;
        return;
      }
      own_.unlock_owner();
    }
    lock_slow(self);
  }

  [[gnu::always_inline]] void unlock() {
    if (by_owner_) [[likely]] {
      by_owner_ = false;
      own_.unlock_owner();
    } else {
      shared_.unlock();
    }
  }

  // Locks the mutex before a fork. Other threads then wait in a state that after_fork_in_child()
  // can undo in the child, where these threads do not exist. The child must call
  // after_fork_in_child() before it unlocks the mutex.
  void lock_for_fork();
  void after_fork_in_child();

 private:
  static const void* this_thread() {
    static thread_local char self;
    return &self;
  }
  void lock_slow(const void* self);
  void take_from_owner();

  // The thread with the bias. Changed under shared_, while no thread holds own_.
  std::atomic<const void*> owner_{nullptr};
  AsymmetricLock own_;
  std::mutex shared_;
  // Guarded by this mutex itself.
  bool by_owner_ = false;
  const void* bias_holder_ever_ = nullptr;  // the only thread that may be the owner
  const void* last_ = nullptr;
  unsigned turns_ = 0;
};

// The lock of HeapState.
using StateLock = Ranked<BiasedMutex, LockRank::kState>;

}  // namespace uvm
