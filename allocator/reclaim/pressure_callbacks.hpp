// The callbacks by which programs free memory when it is short. Owns their list, and makes the
// rounds in which a request calls them (pressure_rounds.hpp). Thread-safe; takes the state lock.
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
  // Returns the rounds for the request. They contain no callbacks if no free could make room for
  // the request.
  PressureRounds rounds(const Request& request);
  // Returns whether the budget would have room for the request if all cached memory were given
  // back. If not, a retry cannot succeed yet, because callbacks may free little at a time.
  bool has_room_if_all_is_free(const Request& request);

 private:
  HeapState& state_;
  BlockCounts& counts_;
  const std::size_t counters_;
};

}  // namespace uvm
