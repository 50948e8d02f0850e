// A mutex with a rank. A thread may take a mutex only if the rank of the mutex is above the ranks
// of all locks that the thread holds, because another order could deadlock (invariant 12). Debug
// builds check the order and abort with the names of both locks. Release builds contain only the
// mutex.
#pragma once

#include <cstdint>

#include "runtime/thread_safety.hpp"

namespace uvm {

enum class LockRank : std::uint8_t {
#define UVM_LOCK_RANK(constant, name) constant,
#include "runtime/lock_ranks.def"
};

namespace detail {
#ifndef NDEBUG
// Has a bit for the rank of each lock that this thread holds.
inline thread_local unsigned held_ranks = 0;

// If this thread holds a lock of `rank` or a later rank: logs a line with both names, and aborts.
void enter_rank(LockRank rank);
void leave_rank(LockRank rank);
// Returns whether this thread holds a lock of `rank` or a later rank.
inline bool holds_rank_from(LockRank rank) {
  return held_ranks >> static_cast<unsigned>(rank) != 0;
}
// Forgets which ranks this thread holds. Called at a fork, which takes all locks of one allocator
// and then the locks of the next, and before a line is logged just before an abort.
inline void forget_ranks() {
  held_ranks = 0;
}
#else
inline void enter_rank(LockRank) {}
inline void leave_rank(LockRank) {}
inline bool holds_rank_from(LockRank) {
  return false;
}
inline void forget_ranks() {}
#endif
}  // namespace detail

template <class Mutex, LockRank kRank>
class UVM_CAPABILITY("mutex") Ranked {
 public:
  [[gnu::always_inline]] void lock() UVM_ACQUIRE() {
    detail::enter_rank(kRank);
    mutex_.lock();
  }
  bool try_lock() UVM_TRY_ACQUIRE(true) {
    if (!mutex_.try_lock()) return false;
    detail::enter_rank(kRank);
    return true;
  }
  [[gnu::always_inline]] void unlock() UVM_RELEASE() {
    mutex_.unlock();
    detail::leave_rank(kRank);
  }
  void lock_shared() UVM_NOT_ANALYSED {
    detail::enter_rank(kRank);
    mutex_.lock_shared();
  }
  void unlock_shared() UVM_NOT_ANALYSED {
    mutex_.unlock_shared();
    detail::leave_rank(kRank);
  }
  void lock_for_fork() UVM_ACQUIRE() {
    detail::enter_rank(kRank);
    mutex_.lock_for_fork();
  }
  void after_fork_in_child() { mutex_.after_fork_in_child(); }

 private:
  Mutex mutex_;
};

// Holds a Ranked mutex until the end of a scope. Clang's analysis knows this class, but not
// std::lock_guard.
template <class Mutex>
class UVM_SCOPED_CAPABILITY RankedGuard {
 public:
  explicit RankedGuard(Mutex& mutex) UVM_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~RankedGuard() UVM_RELEASE() { mutex_.unlock(); }
  RankedGuard(const RankedGuard&) = delete;
  RankedGuard& operator=(const RankedGuard&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace uvm
