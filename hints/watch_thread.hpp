// A thread that looks at something again and again. It exists only while it is wanted, and ends
// before the process's other handlers at exit run. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace uvm {

class WatchThread {
 public:
  // Called on the thread. Returns how long the thread waits before the next call. Must not throw.
  using Look = std::function<std::chrono::nanoseconds()>;

  // `name` has at most 15 characters, and debuggers show it.
  WatchThread(const char* name, Look look);
  ~WatchThread();
  WatchThread(const WatchThread&) = delete;
  WatchThread& operator=(const WatchThread&) = delete;

  // If `wanted`, starts the thread, which calls the function at once. Otherwise the thread ends by
  // itself. Throws std::system_error if the thread cannot be started.
  void set_wanted(bool wanted);
  bool runs() const;
  // Called in a forked child, which does not have the thread.
  void abandon() noexcept;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace uvm
