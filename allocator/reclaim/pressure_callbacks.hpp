// The callbacks by which programs free memory: the list, and the rounds in which a request under
// pressure calls them (pressure_rounds.hpp). Thread-safe; takes the state lock itself.
#pragma once

#include <cstddef>

#include "allocator/state/block_counts.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

class PressureCallbacks {
 public:
  PressureCallbacks(Machine& machine, HeapState& state, BlockCounts& counts)
      : state_(state), counts_(counts), counters_(kFacades * machine.devices.size()) {}
  PressureCallbacks(const PressureCallbacks&) = delete;
  PressureCallbacks& operator=(const PressureCallbacks&) = delete;

  void add(PressureRounds::Callback callback);
  // The rounds have no callbacks if no free can make room for the request.
  PressureRounds rounds(const Request& request);
  // Whether the budget would have room if only live blocks used it. If not, a retry cannot succeed
  // while callbacks free little at a time.
  bool has_room_if_all_is_free(const Request& request);

 private:
  HeapState& state_;
  BlockCounts& counts_;
  const std::size_t counters_;
};

}  // namespace uvm
