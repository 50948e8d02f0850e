// Two programs on one device that has no room for both: each repeats its recorded step, and they
// take turns by the rules of hints/sharing/turns.hpp. Before a turn passes, the memory of the
// program whose turn is over leaves the device and the host waits for that. The memory of the other
// program comes some kernels ahead of its use. Virtual time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/engine/machine_profile.hpp"
#include "sim/replay/recording.hpp"

namespace uvm::oversubscription {

// Times are of one round: a turn of each program, in the steady state.
struct TwoPrograms {
  std::size_t steps[2] = {};   // of a turn
  std::uint64_t alone_ns = 0;  // the same steps, one program after the other, with all memory
  std::uint64_t turns_ns = 0;
  std::uint64_t moved_bytes = 0;  // both ways
  std::uint64_t driver_ns = 0;  // without turns and hints: a step of each by turns, as many in all
  std::string failure;          // empty, or why they do not run
};

// Each recording's last whole step. Programs have `memory_bytes` of the device; each must fit.
TwoPrograms two_programs(const uvmsim::replay::Recording& first,
                         const uvmsim::replay::Recording& second,
                         const uvmsim::MachineProfile& profile, std::size_t memory_bytes);

}  // namespace uvm::oversubscription
