// What a caller is told when a request cannot be met: who holds how much, and what to set.
#pragma once

#include <string>

#include <uvmalloc/allocator/engine/introspection.hpp>
#include <uvmalloc/allocator/engine/limits.hpp>

namespace uvm {

class OutOfMemoryReport {
 public:
  OutOfMemoryReport(Machine& machine, HeapState& state, const Introspection& introspection)
      : machine_(machine), state_(state), introspection_(introspection) {}

  // A driver that refuses memory for another reason than that there is none is not helped by giving
  // any back, and the caller should learn why: std::runtime_error then.
  static void throw_if_broken(const Request& request, const Refusal& refusal);
  // Counts and traces it, and throws OutOfMemoryError.
  [[noreturn]] void raise(const Request& request, const Refusal& refusal);

 private:
  std::string advice(const Request& request, const Refusal& refusal) const;
  std::string advice_on_driver(const RuntimeStatus& status) const;

  Machine& machine_;
  HeapState& state_;
  const Introspection& introspection_;
};

}  // namespace uvm
