// Two programs on one device that has no room for both. Each repeats its recorded step, and they
// take turns by the rules of hints/sharing/turns.hpp. At the end of a turn, the program's memory is
// evicted from the device, and the host waits for the eviction. The memory of the next program
// arrives some kernels ahead of its use. All times are virtual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/engine/machine_profile.hpp"
#include "sim/replay/recording.hpp"

namespace uvm::oversubscription {

// Times are for one round: one turn of each program, in the steady state.
struct TwoPrograms {
  std::size_t steps[2] = {};   // per turn
  std::uint64_t alone_ns = 0;  // the same steps, one program after the other, with all memory
  std::uint64_t turns_ns = 0;
  std::uint64_t moved_bytes = 0;  // in both directions
  std::uint64_t driver_ns = 0;  // without turns and hints: the same steps, alternating between the
                                // programs
  std::string failure;          // empty, or the reason why they do not run
};

// Runs each recording's last whole step. The programs share `memory_bytes` of the device; each
// program must fit alone.
TwoPrograms two_programs(const uvmsim::replay::Recording& first,
                         const uvmsim::replay::Recording& second,
                         const uvmsim::MachineProfile& profile, std::size_t memory_bytes);

}  // namespace uvm::oversubscription
