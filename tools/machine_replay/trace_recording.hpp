// Converts a trace of uvmalloc into a recording for the simulated machine: converts blocks and
// ranges to pages, and assigns touches to the kernel of their thread. A pure function.
#pragma once

#include "sim/replay/recording.hpp"
#include "tools/trace/trace_reader.hpp"

namespace uvm::machine_replay {

// Throws std::invalid_argument, which names the event, if a kernel's touches are missing, if a
// number is invalid, or if the trace has no kernels.
uvmsim::replay::Recording recording_of(const Trace& trace);

}  // namespace uvm::machine_replay
