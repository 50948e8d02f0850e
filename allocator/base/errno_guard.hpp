// Restores errno at the end of a scope: a program's memory calls must not change it.
#pragma once

#include <cerrno>

namespace uvm {

class ErrnoGuard {
 public:
  ErrnoGuard() = default;
  ~ErrnoGuard() { errno = saved_; }
  ErrnoGuard(const ErrnoGuard&) = delete;
  ErrnoGuard& operator=(const ErrnoGuard&) = delete;

 private:
  const int saved_ = errno;
};

}  // namespace uvm
