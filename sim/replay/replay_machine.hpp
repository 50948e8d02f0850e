// Runs a recording on a machine with a given profile, in virtual time. The machine has the rules
// and costs of the simulated machine (docs/reference/simulator.md) but stores no bytes, so a step
// takes microseconds of real time. Single-threaded. At the start of each run no page is resident.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/machine_profile.hpp"
#include "sim/replay/hint_policy.hpp"
#include "sim/replay/recording.hpp"

namespace uvmsim::replay {

// The events from one mark to the next; the first step comes before the first mark.
struct Step {
  std::string mark;
  std::uint64_t duration_ns = 0;
  std::uint64_t kernel_ns = 0;  // time of the kernels if all their memory is resident
  uvmsim_counters counters{};   // counters of only this step
};

// The state at the end of an event.
struct Sample {
  std::size_t event = 0;
  std::uint64_t at_ns = 0;
  uvmsim_counters counters{};               // totals since the start
  std::vector<std::size_t> resident_bytes;  // by device
};

// The moves caused by touches of one allocation.
struct BlockFigures {
  std::uint64_t touches = 0;
  std::uint64_t faults = 0;
  std::uint64_t bytes_to_device = 0;
  std::uint64_t evicted_bytes = 0;  // evicted bytes of any allocation, to make room for this one
};

struct Outcome {
  std::uint64_t duration_ns = 0;
  std::vector<Step> steps;
  uvmsim_counters counters{};
  std::vector<std::size_t> peak_bytes;  // by device
  std::vector<Sample> samples;
  std::vector<BlockFigures> blocks;  // by Event::block
  // Empty, or one line that names the event for which memory ran out. The run ends there.
  std::string failure;
};

struct RunOptions {
  std::size_t sample_every = 0;  // events; 0: no samples
};

// Each device has the profile's capacity. Throws std::invalid_argument for an invalid recording.
Outcome run(const Recording& recording, const MachineProfile& profile, HintPolicy& policy,
            const RunOptions& options = {});

}  // namespace uvmsim::replay
