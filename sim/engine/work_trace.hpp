// Reports a program's work on streams to uvmalloc's trace, if that library is in the process and
// writes a trace (uvmalloc_trace_kernel in uvmalloc.h). Finds the library by name, because
// simulated programs also run without it. Does nothing until the library is found. Thread-safe;
// never called with the machine's mutex held.
#pragma once

#include <span>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/cost_model.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/timeline.hpp"

namespace uvmsim {

enum class TracedOrder {
  kSignal = -1,
  kStreamForSignal = 0,
  kHostForSignal,
  kHostForStream,
  kHostForDevice,
};

class WorkTrace {
 public:
  // Looks for the library until it is found. Allocating calls do this, because a program loads its
  // allocator before it allocates.
  static void find_library();

  static void kernel(int device, StreamHandle stream, const KernelWork& work,
                     std::span<const uvmsim_access> accesses);
  static void copy(int device, StreamHandle stream, const TracedCopy& copy);
  static void fill(int device, StreamHandle stream, const Fill& fill);
  static void order(int device, StreamHandle stream, EventHandle event, TracedOrder order);
};

}  // namespace uvmsim
