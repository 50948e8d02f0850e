// Finds the step that a program repeats, for a recording without marks. The plan of a running
// program finds its step in the same way (hints/live/step_learner.hpp).
#pragma once

#include "sim/replay/recording.hpp"

namespace uvm::oversubscription {

// Returns the recording with just two marks, around the last whole step that corresponds to the one
// before it. The step begins where the least memory is in use, which in training is between the
// optimizer and the next forward pass. Throws std::invalid_argument if the kernels repeat no step.
uvmsim::replay::Recording with_found_step(const uvmsim::replay::Recording& recording);

}  // namespace uvm::oversubscription
