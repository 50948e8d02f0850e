// Holds Python's lock while one lives, and says whether this is Python's only thread. If so, no
// other thread can reach an object that only Python holds: a Python thread counts from its start to
// its end, also while it waits or works without the lock.
#pragma once

namespace uvm::torch_plugin {

class SolePythonThread {
 public:
  // Takes no lock in a thread that is unknown to Python, or without Python.
  SolePythonThread();
  ~SolePythonThread();
  SolePythonThread(const SolePythonThread&) = delete;
  SolePythonThread& operator=(const SolePythonThread&) = delete;

  // Also false if it is unknown: there is no Python, or it is free-threaded.
  bool is_sole() const { return is_sole_; }

 private:
  bool has_lock_ = false;
  int lock_before_ = 0;
  bool is_sole_ = false;
};

}  // namespace uvm::torch_plugin
