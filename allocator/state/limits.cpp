#include "allocator/state/limits.hpp"

#include <algorithm>

namespace uvm {

HeapState::Guarded::Guarded(Machine& machine)
    : budget_bytes(machine.budget.hard_bytes),
      budget_source(machine.configuration.budget_bytes ? BudgetSource::kSetting
                                                       : BudgetSource::kMachine),
      device_limits(machine.devices.size(),
                    machine.configuration.device_budget_bytes.value_or(SIZE_MAX)),
      spill_limits(machine.devices.size(), SIZE_MAX),
      promised_bytes(machine.devices.size(), 0),
      foreign_bytes(machine.devices.size(), SIZE_MAX),
      planner(machine.configuration.policy, machine.budget.devices, ledger,
              machine.figure_store.hints()),
      reserve(machine.devices.size()),
      pools(machine.configuration.large_hits_required.value_or(policy::kLargeHitsRequired)),
      private_pools(machine.device_count()),
      statistics(machine.devices.size(), budget_bytes, machine.figure_store.totals()) {}

namespace limits {

std::size_t limit_of(const LockedHeap& heap, const StreamKey& key) {
  if (key.facade != Facade::kDevice) return SIZE_MAX;
  const auto device = static_cast<std::size_t>(key.device);
  return std::min(heap->device_limits[device], heap->spill_limits[device]);
}

Refusal check(const LockedHeap& heap, const StreamKey& key, std::size_t touched_bytes,
              std::size_t pool_bytes, std::size_t beyond_budget_bytes) {
  const std::size_t wanted_bytes = heap->used_bytes() + touched_bytes;
  if (touched_bytes != 0 && wanted_bytes > heap->budget_bytes &&
      wanted_bytes - heap->budget_bytes > beyond_budget_bytes) {
    return Refusal::of_budget();
  }
  const std::size_t limit = limit_of(heap, key);
  if (limit == SIZE_MAX) return {};
  const std::size_t held = heap->held_bytes(key.facade, key.device);
  if (held <= limit && pool_bytes <= limit - held) return {};
  const auto device = static_cast<std::size_t>(key.device);
  return limit == heap->device_limits[device] ? Refusal::of_device_limit() : Refusal::of_spill();
}

std::size_t beyond_budget_bytes(const LockedHeap& heap, const StreamKey& key,
                                SmallArenas::Growth most) {
  const bool may_exceed =
      most == SmallArenas::Growth::kBeyondBudget && heap->reserve.has_page(key.facade, key.device);
  if (!may_exceed) return 0;
  heap->lowered_below_bytes = std::min(heap->lowered_below_bytes, heap->exceeding_bytes());
  return heap->lowered_below_bytes + heap->reserve.size_bytes();
}

bool exceeds(const LockedHeap& heap, const Request& request) {
  if (request.pages_bytes() > heap->budget_bytes) return true;
  const StreamKey key{request.facade, request.device};
  return request.pages_bytes() >
         std::max(limit_of(heap, key), heap->held_bytes(key.facade, key.device));
}

bool would_leave_device(const LockedHeap& heap, const Request& request) {
  if (request.facade != Facade::kDevice) return false;
  return heap->held_bytes(Facade::kDevice, request.device) + request.pages_bytes() >
         heap->planner.soft_budget_bytes(request.device);
}

bool are_pages_short(const LockedHeap& heap, const StreamKey& key) {
  return heap->used_bytes() > heap->budget_bytes / policy::kConserveFromParts ||
         heap->held_bytes(key.facade, key.device) >
             limit_of(heap, key) / policy::kConserveFromParts;
}

}  // namespace limits
}  // namespace uvm
