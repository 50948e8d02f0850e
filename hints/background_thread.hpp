// A thread of ours in a program. It blocks all signals, which are the program's threads' to handle.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace uvm {

// Throws std::system_error where no thread can be made.
template <class Body>
std::thread start_background_thread(Body body) {
  // A thread inherits the mask of its maker.
  class BlockedSignals {
   public:
    BlockedSignals() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

   private:
    sigset_t before_{};
  };
  const BlockedSignals blocked;
  return std::thread(std::move(body));
}

}  // namespace uvm
