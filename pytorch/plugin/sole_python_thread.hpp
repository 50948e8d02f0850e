// Holds Python's lock while the object lives, and says whether this is Python's only thread. If it
// is, no other thread can reach an object that only Python holds. A Python thread counts from its
// start to its end, also while it waits or runs without the lock.
#pragma once

namespace uvm::torch_plugin {

class SolePythonThread {
 public:
  // Takes no lock if there is no Python, or if Python does not know this thread.
  SolePythonThread();
  ~SolePythonThread();
  SolePythonThread(const SolePythonThread&) = delete;
  SolePythonThread& operator=(const SolePythonThread&) = delete;

  // Also false if the answer is unknown: there is no Python, or it is free-threaded.
  bool is_sole() const { return is_sole_; }

 private:
  bool has_lock_ = false;
  int lock_before_ = 0;
  bool is_sole_ = false;
};

}  // namespace uvm::torch_plugin
