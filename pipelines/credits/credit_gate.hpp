// Credits for threads: each actor has a thread, which waits at the gate until the actor's next
// action may start (the notes on OneFlow, 5: an actor is bound to one thread). Any thread may call
// any function. The gate's lock guards the credits. The lock is held while counters change, but
// never while an action runs.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "pipelines/credits/credit_clock.hpp"
#include "pipelines/credits/credits.hpp"

namespace uvm {

// An actor exceeded the timeout. The message names the actor.
struct CreditTimeoutError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// stop() was called. The message is the reason that was passed to stop().
struct CreditStoppedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class CreditGate {
 public:
  // `timeout` is the `limit` of Credits::overdue(); nullopt: no timeout. The clock must outlive the
  // gate. Throws std::invalid_argument like Credits::check_memory().
  CreditGate(Credits credits, CreditClock& clock, std::optional<Credits::Time> timeout);
  CreditGate(const CreditGate&) = delete;
  CreditGate& operator=(const CreditGate&) = delete;

  // Waits until the actor's next action may start, and starts it. Returns nullopt if the actor is
  // over. After a timeout or stop(), start() throws for every actor.
  std::optional<CreditAction> start(std::size_t actor);
  // Waits until start() would not block, but at most for `most`. Returns whether start() would not
  // block now. For a caller that does other work between waits.
  bool wait(std::size_t actor, Credits::Time most);
  // Same as the functions of Credits.
  void set_output_bytes(std::size_t reg, std::size_t size_bytes);
  void finish(std::size_t actor);
  void close(std::size_t actor);
  void abandon(std::size_t actor);

  // Prevents all further actions. Keeps the reason of the first call.
  void stop(const std::string& reason);

  std::size_t peak_bytes() const;
  std::size_t held_bytes() const;

 private:
  // Waits until the actor may start, is over, or gets an error. Returns false after `until`.
  bool wait_until(std::unique_lock<std::mutex>& lock, std::size_t actor,
                  std::optional<Credits::Time> until);
  // Call after each change of the credits.
  void deliver_and_wake();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Credits credits_;
  CreditClock& clock_;
  std::optional<Credits::Time> timeout_;
  std::optional<std::string> late_;     // the message of the timeout
  std::optional<std::string> stopped_;  // the reason of stop()
};

}  // namespace uvm
