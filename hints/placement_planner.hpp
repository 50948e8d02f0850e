// Where memory should be, and which hints bring it there. The planner decides: from what a facade
// wants, what was advised before and where the residency ledger believes the pages are, it emits a
// plan of hints, often an empty one. It calls no driver. All placement decisions of uvmalloc pass
// through here.
//
// Rules (numbers from the RFC and the drivers' behaviour):
//  * A span is advised once when it is made. Device facade: preferred location is the device. Host
//    and pinned facade: preferred location is the host, accessed by the current device (RFC-0023,
//    "Tuning Managed Memory").
//  * Advice is only ever given to whole segments, since advice on a part splits the driver's range
//    for good, and only where it changes something.
//  * A segment whose preferred location would change for the third time goes back and forth: it is
//    advised preferred=host and accessed-by=device once, and only prefetched from then on.
//  * A prefetch to a device needs credits: bytes of the soft budget not believed resident there. It
//    covers whole 2 MiB pages only.
//  * Nothing is sent for devices that share the host's memory or page tables, nor by policies other
//    than automatic.
//
// Guarded by the allocator's lock, but for plan_span(), which looks at nothing that changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <uvmalloc/hints/hint.hpp>
#include <uvmalloc/hints/hint_counters.hpp>
#include <uvmalloc/hints/policy.hpp>
#include <uvmalloc/storage/facade.hpp>
#include <uvmalloc/storage/residency_ledger.hpp>

namespace uvm {

// What has been advised for a segment, kept beside it.
struct SegmentPlacement {
  Place preferred;
  Place accessed_by;
  std::uint8_t changes = 0;  // of the preferred location since the segment's span was made
  bool read_mostly = false;  // each place that reads has a copy, until somebody writes

  friend bool operator==(const SegmentPlacement&, const SegmentPlacement&) = default;
};

// What a program wants of a segment; what is not set stays as it is.
struct WantedPlacement {
  Place preferred = Place::nowhere();
  Place accessed_by = Place::nowhere();
  std::optional<bool> read_mostly = std::nullopt;
};

struct DevicePlacement {
  // Of its memory, what managed pages may fill before prefetches stop.
  std::size_t soft_budget_bytes = 0;
  bool coherent = false;  // hints would change nothing
};

// Where memory of a facade that was asked for on that device is used at first.
inline Place place_of_use(Facade facade, int device) {
  return facade == Facade::kDevice ? Place::device(device) : Place::host();
}

class PlacementPlanner {
 public:
  static constexpr unsigned kPingPongChanges = 2;

  PlacementPlanner(Policy policy, std::vector<DevicePlacement> devices, ResidencyLedger& ledger,
                   HintCounters& counters);

  Policy policy() const { return policy_; }

  // Default advice for a new span; `*placement` is what its segments start with.
  HintPlan plan_span(void* address, std::size_t size_bytes, Facade facade, int device,
                     SegmentPlacement* placement);

  // A run of whole pages that a block will use at `place` now: never used before, or last used
  // elsewhere.
  HintPlan plan_use(void* address, std::size_t size_bytes, Place place);

  // A move of `size_bytes` at `address`. `placement` is the segment's where the range is one whole
  // segment, nullptr where it is less.
  HintPlan plan_move(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                     Place destination);

  // What a program wants of a range. `placement` is the segment's where that is one whole segment,
  // nullptr where it is less: nothing is known of it then, and nothing kept.
  HintPlan plan_advice(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                       const WantedPlacement& wanted);

  // Bytes that may still be prefetched to the device.
  std::size_t credit_bytes(int device) const;

 private:
  bool silent(HintKind kind, Place place);
  void advise(HintPlan* plan, void* address, std::size_t size_bytes, Advice advice, Place place);
  void prefetch(HintPlan* plan, void* address, std::size_t size_bytes, Place destination);

  Policy policy_;
  std::vector<DevicePlacement> devices_;
  ResidencyLedger& ledger_;
  HintCounters& counters_;
};

}  // namespace uvm
