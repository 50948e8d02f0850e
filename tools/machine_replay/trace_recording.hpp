// A trace of uvmalloc as a recording for the simulated machine: blocks and ranges become pages, and
// the kernels of a thread get their touches together. Made once from a trace; a pure function.
#pragma once

#include "allocator/trace/trace_reader.hpp"
#include "sim/replay/recording.hpp"

namespace uvm::machine_replay {

// Throws std::invalid_argument, which names the event, where a kernel's touches are missing or
// numbers mean nothing, and where the trace has no kernels at all.
uvmsim::replay::Recording recording_of(const Trace& trace);

}  // namespace uvm::machine_replay
