// Writes the coverage counts when a process aborts. Only death tests run the lines that end a
// process. The counts of these lines would be lost, because counts are written at exit.
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
