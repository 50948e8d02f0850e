// Restores errno at the end of a scope, because memory calls must not change a program's errno.
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
