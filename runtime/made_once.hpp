// A value of a process that is made at its first use, as that of a function's static. The guard of
// a static that is being made stays taken in a child that is forked meanwhile, and the child would
// wait for ever. Here the child sees that the maker was another process. Thread-safe; the value is
// never destroyed.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>

namespace uvm {

template <class T>
class MadeOnce {
 public:
  // The value; the first call makes it by make(), which returns a std::unique_ptr<T>. A caller
  // waits for another thread that makes it. After an exception the next call tries again. A child
  // that was forked while its parent made the value makes it by lost().
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
  // Lets the threads that wait look again.
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
    // Another thread may have made it before this one became the maker.
    if (T* made = value_.load(std::memory_order_acquire)) return *made;
    std::unique_ptr<T> made = make();
    value_.store(made.get(), std::memory_order_release);
    return *made.release();
  }

  std::atomic<T*> value_ = nullptr;
  std::atomic<pid_t> maker_ = 0;  // the process that makes it now
};

}  // namespace uvm
