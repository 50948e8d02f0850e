// Lines that end the process run in death tests only. Their counts would be lost: they are written
// as a process exits.
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
