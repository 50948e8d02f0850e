#include "allocator/placement/spill_limit.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "allocator/policy/allocation_policy.hpp"
#include "allocator/state/limits.hpp"

namespace uvm {

SpillLimit::SpillLimit(const Machine& machine, HeapState& state)
    : machine_(machine),
      state_(state),
      setting_(machine.configuration.most_slowdown),
      growths_(static_cast<std::size_t>(machine.device_count())) {}

void SpillLimit::set_find_sign(FindSign find_sign) {
  if (machine_.in_forked_child()) return;
  const HeapGuard heap(state_);
  find_sign_ = std::move(find_sign);
}

// Called without the state lock, because find_sign_ may take the interpreter's lock.
SearchSign SpillLimit::find_sign() {
  FindSign find;
  {
    const HeapGuard heap(state_);
    find = find_sign_;
  }
  return find ? find() : SearchSign::kNone;
}

bool SpillLimit::begin_growth(const LockedHeap& heap, const Request& request) {
  heap.proves(state_);
  if (request.facade != Facade::kDevice) return false;
  const auto device = static_cast<std::size_t>(request.device);
  const std::size_t room_bytes = heap->planner.soft_budget_bytes(request.device);
  Growth& growth = growths_[device];
  const auto least_bytes = static_cast<double>(growth.largest_bytes) * policy::kSearchGrowth;
  if (request.size_bytes >= room_bytes / policy::kSearchDeviceParts &&
      static_cast<double>(request.size_bytes) >= least_bytes) {
    if (growth.largest_bytes != 0) ++growth.times;
    growth.largest_bytes = request.size_bytes;
  }
  if (!limits::would_leave_device(heap, request)) return false;
  if (spills_nothing()) begin_limit(heap, request);
  return may_search();
}

void SpillLimit::begin_limit(const LockedHeap& heap, const Request& request) {
  heap->spill_limits[static_cast<std::size_t>(request.device)] =
      heap->planner.soft_budget_bytes(request.device);
}

double SpillLimit::most_slowdown() const {
  return setting_ && std::isfinite(*setting_) ? *setting_ : policy::kThrashSlowdown;
}

bool SpillLimit::ends_thrashing(int device) {
  if (machine_.configuration.thrashing == Thrashing::kFail) return true;
  if (!may_search()) return std::isfinite(*setting_);
  const SearchSign sign = find_sign();
  if (sign == SearchSign::kSearches) return true;
  const HeapGuard heap(state_);
  const Growth& growth = growths_[static_cast<std::size_t>(device)];
  return growth.times >= policy::kSearchGrowths &&
         (sign == SearchSign::kCatchesErrors || growth.has_had_error);
}

void SpillLimit::note_error(int device) {
  const HeapGuard heap(state_);
  growths_[static_cast<std::size_t>(device)].has_had_error = true;
}

std::string SpillLimit::way_to_spill() const {
  const Configuration& settings = machine_.configuration;
  if (settings.thrashing == Thrashing::kFail)
    return fmt::format("With {}, the program continues instead.",
                       settings.from_variables ? "UVMALLOC_THRASHING=warn" : "thrashing = kWarn");
  const std::string_view name = settings.name_of("UVMALLOC_SPILL", "most_slowdown");
  if (setting_) return fmt::format("To continue instead, raise {}.", name);
  return fmt::format(
      "The program seems to search for the largest batch. Without this error the search would not "
      "stop at the device's memory. To continue instead, set {}.",
      settings.from_variables ? "UVMALLOC_SPILL=none" : "most_slowdown to infinity");
}

}  // namespace uvm
