// Writes the coverage counts when a process aborts. Death tests alone run the lines that end a
// process, and those lines would lose their counts, which are written at exit.
#include <csignal>

extern "C" void __gcov_dump();

namespace {

const bool kInstalled = [] {
  std::signal(SIGABRT, [](int) {
    std::signal(SIGABRT, SIG_DFL);
    __gcov_dump();
    std::raise(SIGABRT);
  });
  return true;
}();

}  // namespace
