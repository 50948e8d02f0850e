// Starts uvmalloc's threads with all signals blocked, so that the program's threads handle signals.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace uvm {

// Throws std::system_error if no thread can be created.
template <class Body>
std::thread start_background_thread(Body body) {
  // Blocks all signals, because a thread inherits the signal mask of its creator.
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
