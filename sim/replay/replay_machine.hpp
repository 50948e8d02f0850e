// Runs a recording on a machine of some profile, in virtual time. It has the rules and the costs of
// the simulated machine (docs/simulator.md) and no bytes: a step takes microseconds. One thread;
// every run starts with memory that is nowhere.
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

// From one mark to the next; the first step is what comes before any mark.
struct Step {
  std::string mark;
  std::uint64_t duration_ns = 0;
  std::uint64_t kernel_ns = 0;  // that kernels take where all their memory is resident
  uvmsim_counters counters{};   // of this step alone
};

// What there is at the end of an event.
struct Sample {
  std::size_t event = 0;
  std::uint64_t at_ns = 0;
  uvmsim_counters counters{};               // so far
  std::vector<std::size_t> resident_bytes;  // by device
};

// What touches of one allocation have caused.
struct BlockFigures {
  std::uint64_t touches = 0;
  std::uint64_t faults = 0;
  std::uint64_t bytes_to_device = 0;
  std::uint64_t evicted_bytes = 0;  // of any memory, to make room for this
};

struct Outcome {
  std::uint64_t duration_ns = 0;
  std::vector<Step> steps;
  uvmsim_counters counters{};
  std::vector<std::size_t> peak_bytes;  // by device
  std::vector<Sample> samples;
  std::vector<BlockFigures> blocks;  // by Event::block
  // Empty, or in one line which event found no memory. The run ends there.
  std::string failure;
};

struct RunOptions {
  std::size_t sample_every = 0;  // events; 0: no samples
};

// The profile's capacity is that of each device. Throws std::invalid_argument for a recording whose
// numbers lead nowhere.
Outcome run(const Recording& recording, const MachineProfile& profile, HintPolicy& policy,
            const RunOptions& options = {});

}  // namespace uvmsim::replay
