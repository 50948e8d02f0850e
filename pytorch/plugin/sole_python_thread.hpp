// Holds Python's lock while the object lives, and tells whether this is Python's only thread. If it
// is, no other thread can access an object that only Python refers to. A Python thread counts from
// its start to its end, even while it waits or runs without the lock.
#pragma once

namespace uvm::torch_plugin {

class SolePythonThread {
 public:
  // Takes no lock if there is no Python, or if Python does not know this thread.
  SolePythonThread();
  ~SolePythonThread();
  SolePythonThread(const SolePythonThread&) = delete;
  SolePythonThread& operator=(const SolePythonThread&) = delete;

  // Also returns false if this is unknown: there is no Python, or Python is free-threaded.
  bool is_sole() const { return is_sole_; }

 private:
  bool has_lock_ = false;
  int lock_before_ = 0;
  bool is_sole_ = false;
};

}  // namespace uvm::torch_plugin
