// Credits for threads: each actor has a thread that waits at the gate until its action may start
// (the notes on OneFlow, 5: an actor is bound to one thread). Any thread may call any function. The
// gate's lock guards the credits; it is held while counters change and never while an action runs.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include <uvmalloc/hints/credit_clock.hpp>
#include <uvmalloc/hints/credits.hpp>

namespace uvm {

// A consumer has not acknowledged a tensor in time. The message names it.
struct CreditTimeoutError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// stop() was called. The message is the reason that it gave.
struct CreditStoppedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class CreditGate {
 public:
  // `timeout`: how long a consumer may have a tensor without an acknowledgement; nullopt: as long
  // as it takes. The clock must outlive the gate. std::invalid_argument as from
  // Credits::check_memory().
  CreditGate(Credits credits, CreditClock& clock, std::optional<Credits::Time> timeout);
  CreditGate(const CreditGate&) = delete;
  CreditGate& operator=(const CreditGate&) = delete;

  // Waits until the actor's next action may start, and starts it. nullopt: the actor is over. After
  // a time-out and after stop() every actor gets the error.
  std::optional<CreditAction> start(std::size_t actor);
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
