// A value that is made at its first use, like a function's static, but safe across a fork. If a
// process forks while a thread makes a static, the static's guard stays taken in the child, and the
// child waits for ever. MadeOnce records which process makes the value, so a child can detect
// this. Thread-safe; the value is never destroyed.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>

namespace uvm {

template <class T>
class MadeOnce {
 public:
  // Returns the value. The first call makes the value by make(), which returns a
  // std::unique_ptr<T>; other threads wait meanwhile. After an exception the next call tries again.
  // A child that was forked while its parent made the value calls lost() instead of make().
  template <class Make, class Lost>
  T& get(Make make, Lost lost) {
    for (;;) {
      if (T* made = value_.load(std::memory_order_acquire)) return *made;
      pid_t maker = 0;
      const pid_t self = getpid();
      if (maker_.compare_exchange_strong(maker, self)) return finish(make);
      if (maker == self) {
        maker_.wait(maker);
      } else if (maker_.compare_exchange_strong(maker, self)) {
        return finish(lost);
      }
    }
  }
  template <class Make>
  T& get(Make make) {
    return get(make, make);
  }

 private:
  // Marks the end of make(), also after an exception: wakes the threads that wait.
  struct Making {
    ~Making() {
      of->store(0);
      of->notify_all();
    }
    std::atomic<pid_t>* of;
  };

  template <class Make>
  T& finish(Make& make) {
    const Making making{&maker_};
    // Another thread may have made the value before this thread became the maker.
    if (T* made = value_.load(std::memory_order_acquire)) return *made;
    std::unique_ptr<T> made = make();
    value_.store(made.get(), std::memory_order_release);
    return *made.release();
  }

  std::atomic<T*> value_ = nullptr;
  std::atomic<pid_t> maker_ = 0;  // the process that is making the value; 0: none
};

}  // namespace uvm
