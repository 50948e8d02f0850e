// The time that an event of a recording takes on a machine if the event's memory is resident.
#pragma once

#include <cstdint>

#include "sim/engine/cost_model.hpp"
#include "sim/replay/recording.hpp"

namespace uvmsim::replay {

// Returns the time of a kernel or an explicit copy; 0 for other events.
std::uint64_t event_ns(const Recording& recording, const Event& event, const CostModel& costs);

}  // namespace uvmsim::replay
