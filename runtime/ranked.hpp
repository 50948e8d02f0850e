// A mutex with a rank. Debug builds abort, with both names, if a thread takes a mutex whose rank is
// not above those that it holds: that order could deadlock. Release builds have the mutex alone.
#pragma once

#include <cstdint>

#include "runtime/thread_safety.hpp"

namespace uvm {

// In the order in which one thread may take them. From kArena on, none is held across a driver
// call.
enum class LockRank : std::uint8_t {
  kNone,
  kPlan,
  kRelease,
  kFences,
  kPendingHints,
  kCaptures,
  kArena,
  kCaches,
  kState,
  kEvents,
  kLanes,
  kTrace,
  kThreadEnds,
};

namespace detail {
#ifndef NDEBUG
// The ranks of the locks that this thread holds, a bit each.
inline thread_local unsigned held_ranks = 0;

// Aborts with a line that names both if `rank` may not be taken now.
void enter_rank(LockRank rank);
void leave_rank(LockRank rank);
// Whether this thread holds a lock of that rank or a later one.
inline bool holds_rank_from(LockRank rank) {
  return held_ranks >> static_cast<unsigned>(rank) != 0;
}
// Forgets the locks that this thread holds. Around a fork it takes the locks of one allocator after
// those of another, and a thread that is about to abort may log a line.
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

// Holds a Ranked mutex until the end of its scope. Unlike std::lock_guard it is known to clang's
// analysis.
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
