// Raises the error of a request that cannot be served. The message says who holds how much memory,
// and which setting allows more. Thread-safe; called without locks.
#pragma once

#include <string>

#include "allocator/inspection/introspection.hpp"
#include "allocator/placement/spill_limit.hpp"
#include "allocator/state/limits.hpp"

namespace uvm {

class OutOfMemoryReport {
 public:
  OutOfMemoryReport(Machine& machine, HeapState& state, const Introspection& introspection,
                    SpillLimit& spill_limit)
      : machine_(machine),
        state_(state),
        introspection_(introspection),
        spill_limit_(spill_limit) {}

  // Throws std::runtime_error if the driver refuses memory for a reason other than a lack of
  // memory, because giving memory back would then not help.
  static void throw_if_broken(const Request& request, const Refusal& refusal);
  // Counts and traces the failure, and throws OutOfMemoryError.
  [[noreturn]] void raise(const Request& request, const Refusal& refusal);

 private:
  std::string advice(const Request& request, const Refusal& refusal) const;
  std::string advice_on_driver(const RuntimeStatus& status) const;

  Machine& machine_;
  HeapState& state_;
  const Introspection& introspection_;
  SpillLimit& spill_limit_;
};

}  // namespace uvm
