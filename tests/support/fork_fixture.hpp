// An allocator in a process that forks.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/allocator_fixture.hpp"

namespace uvm::testing {

class ForkTest : public AllocatorTest {
 protected:
  // Runs `child` in a forked process and returns its exit code, or 128 + the signal that ended it.
  template <class Body>
  int fork_and_run(Body child) {
    pid_t pid = fork();
    if (pid == 0) _exit(child());
    return exit_code(pid);
  }

  struct Waiting {
    pid_t pid = -1;
    int start = -1;  // the write end of the pipe that the child waits for
  };
  // Like fork_and_run(), but the child runs `child` when join() is called.
  template <class Body>
  Waiting fork_and_wait(Body child) {
    int ends[2];
    if (pipe(ends) != 0) return {};
    pid_t pid = fork();
    if (pid == 0) {
      close(ends[1]);
      char go = 0;
      _exit(read(ends[0], &go, 1) == 1 ? child() : 99);
    }
    close(ends[0]);
    return {pid, ends[1]};
  }
  static int join(const Waiting& child) {
    EXPECT_EQ(write(child.start, "x", 1), 1);
    close(child.start);
    return exit_code(child.pid);
  }

  ForkStatistics forks() const { return allocator->statistics().forks; }

 private:
  static int exit_code(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
};

}  // namespace uvm::testing
