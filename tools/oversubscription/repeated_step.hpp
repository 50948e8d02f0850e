// Repeats one step of a recording: the events before the step once, then the step `times` times.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/replay/recording.hpp"

namespace uvm::oversubscription {

// The step begins at the mark `mark` and ends at the next mark. An empty string selects the last
// step that has an end and a kernel. Throws std::invalid_argument if there is no such step, if the
// recording has several devices, or if the step has no kernel.
uvmsim::replay::Recording repeated_step(const uvmsim::replay::Recording& recording,
                                        const std::string& mark, std::size_t times);

// Shuffles the kernels of each step. Other events stay in place. The result depends only on the
// seed, on every platform.
uvmsim::replay::Recording with_shuffled_kernels(const uvmsim::replay::Recording& recording,
                                                std::uint64_t seed);

}  // namespace uvm::oversubscription
