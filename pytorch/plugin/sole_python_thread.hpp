// Holds Python's lock while one lives, and tells whether this thread is the only one of Python's.
// Then no other thread can get at an object that Python alone holds: a thread of Python is counted
// from its start to its end, also while it waits, or works without the lock.
#pragma once

namespace uvm::torch_plugin {

class SolePythonThread {
 public:
  // Takes no lock in a thread that is not Python's, and where there is no Python.
  SolePythonThread();
  ~SolePythonThread();
  SolePythonThread(const SolePythonThread&) = delete;
  SolePythonThread& operator=(const SolePythonThread&) = delete;

  // False too if this cannot be known: there is no Python, or one that works without the lock.
  bool is_sole() const { return is_sole_; }

 private:
  bool has_lock_ = false;
  int lock_before_ = 0;
  bool is_sole_ = false;
};

}  // namespace uvm::torch_plugin
