// One step of a recording, run again and again: what came before it once, then the step as often as
// asked. A pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/replay/recording.hpp"

namespace uvm::oversubscription {

// The step that begins at the mark of that text and ends at the next mark. An empty text is the
// last step that has an end and a kernel. Throws std::invalid_argument where there is none, and for
// a recording of several devices, or without a kernel in the step.
uvmsim::replay::Recording repeated_step(const uvmsim::replay::Recording& recording,
                                        const std::string& mark, std::size_t times);

// Kernels of each step in an order of its own. All else stays in its place. The same numbers come
// from the same seed everywhere.
uvmsim::replay::Recording with_shuffled_kernels(const uvmsim::replay::Recording& recording,
                                                std::uint64_t seed);

}  // namespace uvm::oversubscription
