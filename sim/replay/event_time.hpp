// How long an event of a recording takes on a machine where its memory is at hand.
#pragma once

#include <cstdint>

#include "sim/engine/cost_model.hpp"
#include "sim/replay/recording.hpp"

namespace uvmsim::replay {

// Of a kernel or an explicit copy; 0 for other events.
std::uint64_t event_ns(const Recording& recording, const Event& event, const CostModel& costs);

}  // namespace uvmsim::replay
