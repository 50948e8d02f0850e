#include "allocator/reclaim/pressure_callbacks.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "allocator/state/limits.hpp"

namespace uvm {

void PressureCallbacks::add(PressureRounds::Callback callback) {
  auto added = std::make_shared<PressureRounds::Callback>(std::move(callback));
  const HeapGuard heap(state_);
  heap->pressure_callbacks.push_back(std::move(added));
}

PressureRounds PressureCallbacks::rounds(const Request& request) {
  PressureRounds::Callbacks callbacks;
  std::size_t budget_bytes = 0;
  {
    const HeapGuard heap(state_);
    budget_bytes = heap->budget_bytes;
    if (!limits::exceeds(heap, request)) callbacks = heap->pressure_callbacks;
  }
  return {this, std::move(callbacks), [this] { return counts_.sum(counters_).freed_bytes; },
          budget_bytes};
}

bool PressureCallbacks::has_room_if_all_is_free(const Request& request) {
  const auto live_bytes =
      static_cast<std::size_t>(std::max<std::int64_t>(counts_.sum(counters_).live_bytes, 0));
  const HeapGuard heap(state_);
  return live_bytes <= heap->budget_bytes && request.size_bytes <= heap->budget_bytes - live_bytes;
}

}  // namespace uvm
