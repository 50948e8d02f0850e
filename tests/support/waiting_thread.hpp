// Finds out when another thread waits for a lock, without a sleep that may be too short.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <thread>

namespace uvm::testing {

// A thread that announces itself and then calls `body`, which first takes a lock.
class WaitingThread {
 public:
  explicit WaitingThread(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          tid_ = gettid();
          body();
          over_ = true;
        }) {}
  ~WaitingThread() { join(); }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // Returns true once the thread sleeps in the kernel or has spun for a millisecond of its own
  // processor time. Returns false if `body` has returned: nothing made it wait.
  bool waits() { return comes_to_wait(1'000'000, true); }
  // Returns true once the thread sleeps in the kernel. Returns false if it has spun for a tenth of
  // a second of its own processor time, or if `body` has returned.
  bool falls_asleep() { return comes_to_wait(100'000'000, false); }

 private:
  bool comes_to_wait(long long spun_ns, bool may_spin) {
    while (tid_ == 0) sched_yield();
    clockid_t clock = 0;
    pthread_getcpuclockid(thread_.native_handle(), &clock);
    const long long begin = nanoseconds(clock);
    while (!over_) {
      if (sleeps()) return !over_;
      if (nanoseconds(clock) - begin > spun_ns) return may_spin && !over_;
      sched_yield();
    }
    return false;
  }
  static long long nanoseconds(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  }
  bool sleeps() const {
    const std::string name = "/proc/self/task/" + std::to_string(tid_) + "/stat";
    std::FILE* file = std::fopen(name.c_str(), "r");
    if (file == nullptr) return false;
    char state = 0;
    const bool read = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    std::fclose(file);
    return read && state == 'S';
  }

  std::atomic<pid_t> tid_ = 0;
  std::atomic<bool> over_ = false;
  std::thread thread_;  // last, because the thread uses the other members
};

}  // namespace uvm::testing
