// Finds the step that a program repeats, in a recording without marks. The plan of a running
// program finds its step in the same way (hints/oversubscription/step_learner.hpp).
#pragma once

#include "sim/replay/recording.hpp"

namespace uvm::oversubscription {

// Returns the recording with only two marks, around the last whole step that repeats the step
// before it. The step begins at the event at which the least memory is in use: in training, between
// optimizer and forward pass. Throws std::invalid_argument if the kernels do not repeat a step.
uvmsim::replay::Recording with_found_step(const uvmsim::replay::Recording& recording);

}  // namespace uvm::oversubscription
