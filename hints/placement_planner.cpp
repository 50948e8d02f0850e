#include "hints/placement_planner.hpp"

#include <algorithm>
#include <utility>

#include "hints/policy.hpp"

namespace uvm {
namespace {

thread_local std::optional<Policy> thread_policy;

// Suspends the thread's own policy for a scope.
class WithoutThreadPolicy {
 public:
  WithoutThreadPolicy() : wanted_here_(set_thread_policy(std::nullopt)) {}
  ~WithoutThreadPolicy() { set_thread_policy(wanted_here_); }
  WithoutThreadPolicy(const WithoutThreadPolicy&) = delete;
  WithoutThreadPolicy& operator=(const WithoutThreadPolicy&) = delete;

 private:
  const std::optional<Policy> wanted_here_;
};

// Returns whether the thread's policy sends no hints. Then no hint may be recorded as sent.
bool is_silent_here() {
  return !sends_hints(thread_policy.value_or(Policy::kAuto));
}

}  // namespace

std::optional<Policy> set_thread_policy(std::optional<Policy> policy) {
  return std::exchange(thread_policy, policy);
}

const char* to_string(SkipReason reason) {
  switch (reason) {
    case SkipReason::kAlreadyThere:
      return "already_there";
    case SkipReason::kNoCredit:
      return "no_credit";
    case SkipReason::kPolicy:
      return "policy";
    case SkipReason::kCoherent:
      return "coherent";
    case SkipReason::kSharedPages:
      return "shared_pages";
    case SkipReason::kPingPong:
      return "ping_pong";
  }
  return "unknown";
}

std::string_view to_string(Policy policy) {
  for (const auto& [name, named] : kPolicies) {
    if (named == policy) return name;
  }
  return "unknown";
}

PlacementPlanner::PlacementPlanner(Policy policy, std::vector<DevicePlacement> devices,
                                   ResidencyLedger& ledger, HintCounters& counters)
    : policy_(policy), ledger_(ledger), counters_(counters) {
  for (const DevicePlacement& device : devices) {
    const std::size_t bytes = device.soft_budget_bytes;
    devices_.push_back({.placement = device,
                        .soft_budget_bytes = bytes,
                        .next_look_bytes = bytes / policy::kReadsWhileFilling});
  }
}

PlacementPlanner::PlacementEvents PlacementPlanner::take_events() {
  PlacementEvents events;
  for (std::size_t index = 0; index < devices_.size(); ++index) {
    const int device = static_cast<int>(index);
    if (std::exchange(at(device).is_short, false)) events.short_devices.push_back(device);
    if (std::exchange(at(device).is_to_be_measured, false))
      events.devices_to_measure.push_back(device);
  }
  has_news_.store(false, std::memory_order_relaxed);
  return events;
}

void PlacementPlanner::set_free_bytes(int device, std::size_t free_bytes) {
  const std::size_t had_bytes = ledger_.bytes_at(Place::device(device)) + free_bytes;
  at(device).soft_budget_bytes = std::min(at(device).placement.soft_budget_bytes, had_bytes);
}

std::size_t PlacementPlanner::soft_budget_bytes(int device) const {
  return at(device).soft_budget_bytes;
}

void PlacementPlanner::note_arrival(int device) {
  const std::size_t resident = ledger_.bytes_at(Place::device(device));
  if (resident < at(device).next_look_bytes) return;
  const std::size_t quarter = at(device).placement.soft_budget_bytes / policy::kReadsWhileFilling;
  at(device).next_look_bytes = resident + std::max(quarter, kPageBytes);
  at(device).is_to_be_measured = true;
  has_news_.store(true, std::memory_order_relaxed);
}

std::size_t PlacementPlanner::credit_bytes(int device) const {
  std::size_t budget = at(device).soft_budget_bytes;
  std::size_t resident = ledger_.bytes_at(Place::device(device));
  return budget > resident ? budget - resident : 0;
}

// Returns whether the policy or the kind of device excludes the hint. If so, counts it as skipped.
// `is_wanted`: the program wants this move of pages.
bool PlacementPlanner::is_suppressed(HintKind kind, Place place, bool is_wanted) {
  if (!sends_hints(thread_policy.value_or(policy_))) {
    counters_.skip(kind, SkipReason::kPolicy);
    return true;
  }
  // A hint to the host concerns all devices. Device 0 represents all devices, because either all
  // devices of a machine are coherent, or none is.
  const DevicePlacement& device = at(place.is_device() ? place.index : 0).placement;
  if (device.coherent && !(is_wanted && device.has_own_memory)) {
    counters_.skip(kind, SkipReason::kCoherent);
    return true;
  }
  return false;
}

void PlacementPlanner::advise(HintPlan* plan, void* address, std::size_t size_bytes, Advice advice,
                              Place place) {
  if (is_suppressed(HintKind::kAdvise, place)) return;
  plan->push_back({HintKind::kAdvise, advice, place, address, size_bytes});
}

void PlacementPlanner::prefetch(HintPlan* plan, void* address, std::size_t size_bytes,
                                Place destination, bool is_copied, bool is_wanted) {
  if (is_suppressed(HintKind::kPrefetch, destination, is_wanted)) return;
  // Only whole pages, because other blocks share the pages at the ends.
  std::uintptr_t begin = round_up(address_of(address), kPageBytes);
  std::uintptr_t end = (address_of(address) + size_bytes) & ~(kPageBytes - 1);
  if (begin >= end) {
    counters_.skip(HintKind::kPrefetch, SkipReason::kSharedPages);
    return;
  }
  address = reinterpret_cast<void*>(begin);
  size_bytes = end - begin;
  std::size_t missing = size_bytes - ledger_.bytes_at(address, size_bytes, destination);
  if (missing == 0) {
    counters_.skip(HintKind::kPrefetch, SkipReason::kAlreadyThere);
    return;
  }
  if (destination.is_device() && credit_bytes(destination.index) < missing) {
    counters_.skip(HintKind::kPrefetch, SkipReason::kNoCredit);
    at(destination.index).is_short = true;
    has_news_.store(true, std::memory_order_relaxed);
    return;
  }
  ledger_.set(address, size_bytes, destination);
  if (destination.is_device()) note_arrival(destination.index);
  plan->push_back({HintKind::kPrefetch, {}, destination, address, size_bytes, is_copied});
}

HintPlan PlacementPlanner::plan_span(void* address, std::size_t size_bytes, Facade facade,
                                     int device, SegmentPlacement* placement) {
  HintPlan plan;
  *placement = {};
  Place device_place = Place::device(device);
  // Ignores the thread's policy, because the span outlives that policy.
  const WithoutThreadPolicy by_the_planner_alone;
  if (facade == Facade::kDevice) {
    placement->preferred = device_place;
    advise(&plan, address, size_bytes, Advice::kSetPreferredLocation, device_place);
  } else {
    placement->preferred = Place::host();
    placement->accessed_by = device_place;
    advise(&plan, address, size_bytes, Advice::kSetPreferredLocation, Place::host());
    advise(&plan, address, size_bytes, Advice::kSetAccessedBy, device_place);
  }
  return plan;
}

HintPlan PlacementPlanner::plan_use(void* address, std::size_t size_bytes, Place place) {
  HintPlan plan;
  prefetch(&plan, address, size_bytes, place, false);
  return plan;
}

HintPlan PlacementPlanner::plan_move(void* address, std::size_t size_bytes,
                                     SegmentPlacement* placement, Place destination) {
  HintPlan plan;
  // The prefetch comes first, so that the driver copies while the host sends advice, which takes
  // time for each 2 MiB.
  prefetch(&plan, address, size_bytes, destination, true);
  if (placement == nullptr) {
    counters_.skip(HintKind::kAdvise, SkipReason::kSharedPages);
  } else if (is_silent_here()) {
    counters_.skip(HintKind::kAdvise, SkipReason::kPolicy);
  } else if (placement->preferred == destination) {
    counters_.skip(HintKind::kAdvise, SkipReason::kAlreadyThere);
  } else if (placement->changes > policy::kPingPongChanges) {
    counters_.skip(HintKind::kAdvise, SkipReason::kPingPong);
  } else if (++placement->changes > policy::kPingPongChanges) {
    Place device = destination.is_device() ? destination : placement->preferred;
    placement->preferred = Place::host();
    advise(&plan, address, size_bytes, Advice::kSetPreferredLocation, Place::host());
    if (placement->accessed_by != device) {
      placement->accessed_by = device;
      advise(&plan, address, size_bytes, Advice::kSetAccessedBy, device);
    }
  } else {
    placement->preferred = destination;
    advise(&plan, address, size_bytes, Advice::kSetPreferredLocation, destination);
  }
  return plan;
}

HintPlan PlacementPlanner::plan_wanted_move(void* address, std::size_t size_bytes,
                                            Place destination) {
  HintPlan plan;
  prefetch(&plan, address, size_bytes, destination, true, true);
  counters_.skip(HintKind::kAdvise, SkipReason::kSharedPages);
  return plan;
}

HintPlan PlacementPlanner::plan_advice(void* address, std::size_t size_bytes,
                                       SegmentPlacement* placement, const WantedPlacement& wanted) {
  HintPlan plan;
  if (is_silent_here()) {
    counters_.skip(HintKind::kAdvise, SkipReason::kPolicy);
    return plan;
  }
  SegmentPlacement unknown;
  if (placement == nullptr) {
    unknown.read_mostly = !wanted.read_mostly.value_or(false);
    placement = &unknown;
  }
  auto want = [&](auto value, auto* now, Advice advice, Place place) {
    if (*now == value) {
      counters_.skip(HintKind::kAdvise, SkipReason::kAlreadyThere);
      return;
    }
    *now = value;
    advise(&plan, address, size_bytes, advice, place);
  };
  if (wanted.preferred != Place::nowhere()) {
    want(wanted.preferred, &placement->preferred, Advice::kSetPreferredLocation, wanted.preferred);
  }
  if (wanted.accessed_by != Place::nowhere()) {
    want(wanted.accessed_by, &placement->accessed_by, Advice::kSetAccessedBy, wanted.accessed_by);
  }
  if (wanted.read_mostly) {
    // Drivers require a place here and ignore it.
    const bool set = *wanted.read_mostly;
    want(set, &placement->read_mostly, set ? Advice::kSetReadMostly : Advice::kUnsetReadMostly,
         Place::host());
  }
  return plan;
}

}  // namespace uvm
