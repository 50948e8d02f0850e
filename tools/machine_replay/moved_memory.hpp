// Finds the allocations whose touches cause most moves of bytes in a replay, and their call sites
// in the program. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/replay/replay_machine.hpp"
#include "tools/trace/trace_reader.hpp"

namespace uvm::machine_replay {

// Returns the call sites of the allocations in recording_of(trace), by number. A text is empty if
// the allocation has no call site. The vector is empty if the trace has no call sites at all.
std::vector<std::string> call_sites_of(const Trace& trace);

// Returns the first `count` allocations, with their lifetimes and, if known, their call sites.
nlohmann::ordered_json allocations_that_moved_most(const uvmsim::replay::Recording& recording,
                                                   const uvmsim::replay::Outcome& outcome,
                                                   const std::vector<std::string>& sites,
                                                   std::size_t count);

// Returns the first `count` call sites, each with the sums over its allocations. An empty text
// stands for all allocations without a call site.
nlohmann::ordered_json sites_that_moved_most(const uvmsim::replay::Recording& recording,
                                             const uvmsim::replay::Outcome& outcome,
                                             const std::vector<std::string>& sites,
                                             std::size_t count);

}  // namespace uvm::machine_replay
