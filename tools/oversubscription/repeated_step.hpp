// One step of a recording, run again and again: what came before it once, then the step as often as
// asked. A pure function.
#pragma once

#include <cstddef>
#include <string>

#include <uvmalloc/sim/replay/recording.hpp>

namespace uvm::oversubscription {

// The step that begins at the mark of that text and ends at the next mark. An empty text is the
// last step that has an end. Throws std::invalid_argument where there is none, and for a recording
// of several devices, or without a kernel in the step.
uvmsim::replay::Recording repeated_step(const uvmsim::replay::Recording& recording,
                                        const std::string& mark, std::size_t times);

}  // namespace uvm::oversubscription
