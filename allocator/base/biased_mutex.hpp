// A mutex for what is mostly used by one thread at a time: after some turns in a row it belongs to
// that thread, which then takes it without an atomic read-modify-write (OwnerLock), until another
// one asks, pays for both, and it is a plain mutex again. The first thread that gets so far is the
// only one that ever does: one that is stopped on its way in comes in, and leaves, whenever it goes
// on, so nobody else may be using its OwnerLock then. Meets BasicLockable. Not recursive.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include <uvmalloc/allocator/base/owner_lock.hpp>
#include <uvmalloc/runtime/ranked.hpp>

namespace uvm {

class BiasedMutex {
 public:
  [[gnu::always_inline]] void lock() {
    const void* self = this_thread();
    if (owner_.load(std::memory_order_relaxed) == self) [[likely]] {
      own_.enter();
      // It may have been taken away while this thread came in.
      if (owner_.load(std::memory_order_relaxed) == self) [[likely]] {
        by_owner_ = true;
        return;
      }
      own_.leave();
    }
    lock_slowly(self);
  }

  [[gnu::always_inline]] void unlock() {
    if (by_owner_) [[likely]] {
      by_owner_ = false;
      own_.leave();
    } else {
      shared_.unlock();
    }
  }

  // The same as lock(), so that other threads, which are not in a forked child, wait where that can
  // be undone there: the process may be copied. Called by the child with the mutex locked, before
  // anything else, after_fork_in_child() makes it the child's.
  void lock_for_fork();
  void after_fork_in_child();

 private:
  // After so many turns of one thread in a row it is that thread's.
  static constexpr unsigned kTurns = 64;

  static const void* this_thread() {
    static thread_local char self;
    return &self;
  }
  void lock_slowly(const void* self);
  void take_from_owner();

  std::atomic<const void*> owner_{nullptr};  // changed under shared_ with nobody inside own_
  OwnerLock own_;
  std::mutex shared_;
  // Guarded by the lock itself.
  bool by_owner_ = false;
  const void* only_ = nullptr;  // the thread that may be the owner
  const void* last_ = nullptr;
  unsigned turns_ = 0;
};

// What "the allocator's lock" is: it guards pools, spans, records of blocks with nobody, placement
// and statistics.
using StateLock = Ranked<BiasedMutex, LockRank::kState>;

// A lock_guard of it that is inlined, for the ways that programs take all the time.
class InlineStateGuard {
 public:
  [[gnu::always_inline]] explicit InlineStateGuard(StateLock& lock) : lock_(lock) { lock_.lock(); }
  [[gnu::always_inline]] ~InlineStateGuard() { lock_.unlock(); }
  InlineStateGuard(const InlineStateGuard&) = delete;
  InlineStateGuard& operator=(const InlineStateGuard&) = delete;

 private:
  StateLock& lock_;
};

}  // namespace uvm
