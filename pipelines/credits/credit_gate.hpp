// Credits for threads: each actor has a thread that waits at the gate until its action may start
// (the notes on OneFlow, 5: an actor is bound to one thread). Any thread may call any function. The
// gate's lock guards the credits; it is held while counters change and never while an action runs.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "pipelines/credits/credit_clock.hpp"
#include "pipelines/credits/credits.hpp"

namespace uvm {

// An actor was not done in time. The message names it.
struct CreditTimeoutError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// stop() was called. The message is the reason that it gave.
struct CreditStoppedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class CreditGate {
 public:
  // `timeout`: as `limit` of Credits::overdue(); nullopt: as long as it takes. The clock must
  // outlive the gate. std::invalid_argument as from Credits::check_memory().
  CreditGate(Credits credits, CreditClock& clock, std::optional<Credits::Time> timeout);
  CreditGate(const CreditGate&) = delete;
  CreditGate& operator=(const CreditGate&) = delete;

  // Waits until the actor's next action may start, and starts it. nullopt: the actor is over. After
  // a time-out and after stop() every actor gets the error.
  std::optional<CreditAction> start(std::size_t actor);
  // Waits until start() has an answer for the actor, an error included, but not longer than `most`.
  // Returns whether it has one. For a caller that looks at something else between its waits.
  bool wait(std::size_t actor, Credits::Time most);
  // As of Credits.
  void set_output_bytes(std::size_t reg, std::size_t size_bytes);
  void finish(std::size_t actor);
  void close(std::size_t actor);
  void abandon(std::size_t actor);

  // Nobody starts an action any more. The first reason counts.
  void stop(const std::string& reason);

  std::size_t peak_bytes() const;
  std::size_t held_bytes() const;

 private:
  // Waits until the actor may start, is over, or gets an error. Returns false after `until`.
  bool wait_until(std::unique_lock<std::mutex>& lock, std::size_t actor,
                  std::optional<Credits::Time> until);
  // After a change of the credits.
  void deliver_and_wake();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Credits credits_;
  CreditClock& clock_;
  std::optional<Credits::Time> timeout_;
  std::optional<std::string> late_;     // the sentence of the time-out
  std::optional<std::string> stopped_;  // the reason of stop()
};

}  // namespace uvm
