// Finds the allocations whose touches move most bytes in a replay, and their call sites in the
// program. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "allocator/trace/trace_reader.hpp"
#include "sim/replay/replay_machine.hpp"

namespace uvm::machine_replay {

// The call site of each allocation of recording_of(trace), by its number. A text is empty if the
// trace has no call site for the allocation; the vector is empty if the trace has none at all.
std::vector<std::string> call_sites_of(const Trace& trace);

// The first `count` allocations, with their lifetimes and, if known, their call sites.
nlohmann::ordered_json allocations_that_moved_most(const uvmsim::replay::Recording& recording,
                                                   const uvmsim::replay::Outcome& outcome,
                                                   const std::vector<std::string>& sites,
                                                   std::size_t count);

// The first `count` call sites, each with the sums over its allocations. An empty text stands for
// all allocations without a call site.
nlohmann::ordered_json sites_that_moved_most(const uvmsim::replay::Recording& recording,
                                             const uvmsim::replay::Outcome& outcome,
                                             const std::vector<std::string>& sites,
                                             std::size_t count);

}  // namespace uvm::machine_replay
