// Reports a program's work on streams to uvmalloc's trace, if that library is in the process and
// writes one (uvmalloc_trace_kernel in uvmalloc.h). It finds the library by name, because programs
// also run here without it. Until then it does nothing. Thread-safe; never called with the
// machine's mutex held.
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
  // Looks for the library until it is found. A program's allocator is loaded before it allocates,
  // so calls that allocate look.
  static void find_library();

  static void kernel(int device, StreamHandle stream, const KernelWork& work,
                     std::span<const uvmsim_access> accesses);
  static void copy(int device, StreamHandle stream, const TracedCopy& copy);
  static void fill(int device, StreamHandle stream, const Fill& fill);
  static void order(int device, StreamHandle stream, EventHandle event, TracedOrder order);
};

}  // namespace uvmsim
