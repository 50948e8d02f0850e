// A mutex with a rank. In debug builds a thread that takes one of a lower or equal rank than it
// holds is stopped with both names: that order could deadlock. In release builds it is the mutex
// alone.
#pragma once

#include <cstdint>

namespace uvm {

// In the order in which one thread may take them. From kArena on, none is held across a driver
// call.
enum class LockRank : std::uint8_t {
  kNone,
  kRelease,
  kFences,
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
// Of the locks that this thread holds. Ranks are few, so bits do.
inline thread_local unsigned held_ranks = 0;

// Aborts with a line that names both, where `rank` may not be taken now.
void enter_rank(LockRank rank);
void leave_rank(LockRank rank);
// Whether this thread holds a lock of that rank or a later one.
inline bool holds_rank_from(LockRank rank) {
  return held_ranks >> static_cast<unsigned>(rank) != 0;
}
// The locks that this thread holds do not count any more: around a fork it takes those of one
// allocator after another's, and who is about to abort may write a line.
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
class Ranked {
 public:
  [[gnu::always_inline]] void lock() {
    detail::enter_rank(kRank);
    mutex_.lock();
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    detail::enter_rank(kRank);
    return true;
  }
  [[gnu::always_inline]] void unlock() {
    mutex_.unlock();
    detail::leave_rank(kRank);
  }
  void lock_for_fork() {
    detail::enter_rank(kRank);
    mutex_.lock_for_fork();
  }
  void after_fork_in_child() { mutex_.after_fork_in_child(); }

 private:
  Mutex mutex_;
};

}  // namespace uvm
