#include "pytorch/plugin/sole_python_thread.hpp"

#include "pytorch/interpose/python_symbol.hpp"

namespace uvm::torch_plugin {
namespace {

// PyInterpreterState* and PyThreadState*, opaque here.
using PythonInterpreter = void*;
using PythonThread = void*;

struct ThreadCalls {
  PythonThread (*this_thread)() = nullptr;             // PyGILState_GetThisThreadState
  int (*take_lock)() = nullptr;                        // PyGILState_Ensure
  void (*release_lock)(int before) = nullptr;          // PyGILState_Release
  PythonInterpreter (*first_interpreter)() = nullptr;  // PyInterpreterState_Head
  PythonInterpreter (*next_interpreter)(PythonInterpreter) = nullptr;
  PythonThread (*first_thread)(PythonInterpreter) = nullptr;  // PyInterpreterState_ThreadHead
  PythonThread (*next_thread)(PythonThread) = nullptr;
  void* without_lock = nullptr;  // null except in a free-threaded Python

  bool has_lock() const {
    return this_thread && take_lock && release_lock && first_interpreter && next_interpreter &&
           first_thread && next_thread && !without_lock;
  }
};

const ThreadCalls& calls() {
  static const ThreadCalls bound = [] {
    ThreadCalls made;
    bind_python(made.this_thread, "PyGILState_GetThisThreadState");
    bind_python(made.take_lock, "PyGILState_Ensure");
    bind_python(made.release_lock, "PyGILState_Release");
    bind_python(made.first_interpreter, "PyInterpreterState_Head");
    bind_python(made.next_interpreter, "PyInterpreterState_Next");
    bind_python(made.first_thread, "PyInterpreterState_ThreadHead");
    bind_python(made.next_thread, "PyThreadState_Next");
    made.without_lock = dlsym(RTLD_DEFAULT, "PyUnstable_Module_SetGIL");
    return made;
  }();
  return bound;
}

// Call it with Python's lock held.
bool is_only_thread(PythonThread wanted) {
  for (PythonInterpreter each = calls().first_interpreter(); each != nullptr;
       each = calls().next_interpreter(each)) {
    for (PythonThread thread = calls().first_thread(each); thread != nullptr;
         thread = calls().next_thread(thread)) {
      if (thread != wanted) return false;
    }
  }
  return true;
}

}  // namespace

SolePythonThread::SolePythonThread() {
  if (!calls().has_lock()) return;
  const PythonThread self = calls().this_thread();
  if (self == nullptr) return;
  lock_before_ = calls().take_lock();
  has_lock_ = true;
  is_sole_ = is_only_thread(self);
}

SolePythonThread::~SolePythonThread() {
  if (has_lock_) calls().release_lock(lock_before_);
}

}  // namespace uvm::torch_plugin
