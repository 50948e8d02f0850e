// Decides where memory should be, and which hints move it there. The input is the place that a
// facade wants, the advice so far, and the places of the pages in the residency ledger. The output
// is a plan of hints, often an empty one. The planner calls no driver.
//
// Rules (numbers from the RFC and the drivers' behaviour):
//  * A span is advised once when it is made. Device facade: preferred location is the device. Host
//    and pinned facade: preferred location is the host, accessed by the current device (RFC-0023,
//    "Tuning Managed Memory").
//  * Advice is given only to whole segments, because advice on a part splits the driver's range for
//    good, and only if it changes something.
//  * A segment whose preferred location would change for the third time moves back and forth. It is
//    advised preferred=host and accessed-by=device once, and only prefetched from then on.
//  * A prefetch covers whole 2 MiB pages only. To a device it needs credit: soft budget that, by
//    the ledger, no resident page uses.
//  * No hint is sent for devices that share the host's memory or page tables, nor by the policies
//    kDriver and kOff.
//
// Guarded by the state lock, except has_news() and plan_span(). The latter reads no
// state that changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <uvmalloc/facade.hpp>
#include <uvmalloc/policy.hpp>
#include "hints/hint.hpp"
#include "hints/hint_counters.hpp"
#include "storage/residency_ledger.hpp"

namespace uvm {

// The advice in force for a segment.
struct SegmentPlacement {
  Place preferred;
  Place accessed_by;
  std::uint8_t changes = 0;  // of the preferred location since the segment's span was made
  bool read_mostly = false;  // each place that reads keeps a copy until a write

  friend bool operator==(const SegmentPlacement&, const SegmentPlacement&) = default;
};

// The placement that a program wants for a segment. Members that are not set change nothing.
struct WantedPlacement {
  Place preferred = Place::nowhere();
  Place accessed_by = Place::nowhere();
  std::optional<bool> read_mostly = std::nullopt;
};

struct DevicePlacement {
  // Bytes of the device's memory that managed pages may fill before prefetches stop.
  std::size_t soft_budget_bytes = 0;
  bool coherent = false;  // hints would change nothing
};

// The place of the first use of a facade's memory that was requested for `device`.
inline Place place_of_use(Facade facade, int device) {
  return facade == Facade::kDevice ? Place::device(device) : Place::host();
}

class PlacementPlanner {
 public:
  static constexpr unsigned kPingPongChanges = 2;

  PlacementPlanner(Policy policy, std::vector<DevicePlacement> devices, ResidencyLedger& ledger,
                   HintCounters& counters);

  Policy policy() const { return policy_; }

  // Default advice for a new span. `*placement` receives the first placement of the span's
  // segments.
  HintPlan plan_span(void* address, std::size_t size_bytes, Facade facade, int device,
                     SegmentPlacement* placement);

  // For whole pages that a block is about to use at `place`: pages never used before, or last used
  // elsewhere.
  HintPlan plan_use(void* address, std::size_t size_bytes, Place place);

  // For a move of the range to `destination`. `placement` is the segment's if the range is one
  // whole segment, else nullptr.
  HintPlan plan_move(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                     Place destination);

  // Advice that a program wants for a range. `placement` is the segment's if the range is one whole
  // segment, else nullptr: then no earlier advice is known, and none is recorded.
  HintPlan plan_advice(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                       const WantedPlacement& wanted);

  struct PlacementEvents {
    std::vector<int> short_devices;       // a prefetch found no credit there
    std::vector<int> devices_to_measure;  // another quarter of the soft budget is resident there
  };
  // Whether take_events() would return anything.
  bool has_news() const { return has_news_.load(std::memory_order_relaxed); }
  PlacementEvents take_events();

  // Sets the soft budget to the resident bytes and the driver's `free_bytes`, because other
  // programs have the rest; at most to its first value. For devices from which nothing was evicted
  // so far.
  void set_free_bytes(int device, std::size_t free_bytes);
  std::size_t soft_budget_bytes(int device) const;
  // Bytes that may still be prefetched to the device.
  std::size_t credit_bytes(int device) const;

 private:
  bool is_suppressed(HintKind kind, Place place);
  void advise(HintPlan* plan, void* address, std::size_t size_bytes, Advice advice, Place place);
  void prefetch(HintPlan* plan, void* address, std::size_t size_bytes, Place destination,
                bool is_copied);

  struct Device {
    DevicePlacement placement;  // with the first value of the soft budget
    std::size_t soft_budget_bytes = 0;
    std::size_t next_look_bytes = 0;  // resident bytes at which to read the driver's figures again
    bool is_short = false;
    bool is_to_be_measured = false;
  };

  // Readings of the driver's figures while a device is filled.
  static constexpr std::size_t kLooks = 4;

  Device& at(int device) { return devices_.at(static_cast<std::size_t>(device)); }
  const Device& at(int device) const { return devices_.at(static_cast<std::size_t>(device)); }
  void note_arrival(int device);

  Policy policy_;
  std::vector<Device> devices_;
  std::atomic<bool> has_news_{false};
  ResidencyLedger& ledger_;
  HintCounters& counters_;
};

}  // namespace uvm
