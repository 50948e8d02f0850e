// Simulates Credits (credits.hpp) to find out whether all tensors in flight can be consumed in some
// order within the memory quota. A trial only counts tensors, without handing over slots. So it
// copies no actors, registers or messages, and its vectors keep their memory between trials.
//
// Each consumer reads a register's tensors in the order in which they were made. So the remaining
// tensors are those that the slowest consumer has not read.
//
// Not thread-safe: each Credits has its own trial.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace uvm {

class Credits;

class CreditTrial {
 public:
  // Sets the state as if all running actions had ended and all messages had been delivered. If
  // `starting` is given, that actor has also run one action.
  void begin(const Credits& credits, std::optional<std::size_t> starting = std::nullopt);
  // Runs actions until nothing is in flight. The state alone decides the order. A source runs if a
  // waiting tensor needs it; with `with_all_sources` each source also runs once. Returns an actor
  // that has to run, or has a waiting tensor, but cannot start; nullopt if there is none.
  std::optional<std::size_t> drain(bool with_all_sources);
  std::size_t held_bytes() const { return held_bytes_; }

 private:
  // A register's tensors, the oldest first.
  struct Tensors {
    std::vector<std::size_t> bytes;
    std::size_t first = 0;           // tensors before this index are consumed
    std::vector<std::size_t> ready;  // by consumer: how many of the newest tensors it has not read
    std::size_t count() const { return bytes.size() - first; }
  };

  void count_tensors();
  void load_sizes(std::size_t reg);
  bool has_inputs(std::size_t actor) const;
  bool has_credits(std::size_t actor) const;
  bool has_ended(std::size_t actor) const;
  void read_inputs(std::size_t actor);
  void make(std::size_t reg, std::size_t size_bytes);
  void drop_consumed(std::size_t reg);
  void run(std::size_t actor);
  void close(std::size_t actor);
  void settle();
  std::optional<std::size_t> run_one(bool sources);
  std::optional<std::size_t> find_waiting();

  const Credits* credits_ = nullptr;  // the credits of the last begin()
  std::vector<Tensors> tensors_;      // by register
  std::vector<bool> closed_;          // by actor
  std::vector<bool> must_run_;        // sources that still have to run once
  std::vector<bool> wanted_;          // must_run_, and sources that a waiting tensor needs
  std::vector<bool> starved_;         // actors on which a waiting tensor depends
  std::size_t held_bytes_ = 0;
};

}  // namespace uvm
