// Decides where memory should be, and which hints move it there. The input is the place that a
// memory kind wants, the current advice, and the places of the pages in the residency ledger. The
// output is a plan of hints, which is often empty. The planner calls no driver.
//
// Rules (numbers from RFC-0023 and the drivers' behaviour):
//  * A span is advised once, when it is made. Device memory: preferred location is the device. Host
//    and pinned memory: preferred location is the host, accessed by the current device (RFC-0023,
//    "Tuning Managed Memory").
//  * Advice is given only if it changes something, and only to whole segments: advice on a part of
//    a segment splits the driver's range permanently.
//  * A segment moves back and forth if its preferred location would change for the third time. Such
//    a segment is advised preferred=host and accessed-by=device once, then only prefetched.
//  * A prefetch covers only whole 2 MiB pages. A prefetch to a device needs credit: the device's
//    soft budget minus the bytes that, by the ledger, are resident there.
//  * No hint is sent for devices that share the host's memory or page tables. The policies kDriver
//    and kOff send no hints.
//
// Guarded by the state lock, except has_news() and plan_span(), which reads no changing state.
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

// The current advice for a segment.
struct SegmentPlacement {
  Place preferred;
  Place accessed_by;
  std::uint8_t changes = 0;  // changes of `preferred` since the segment's span was made
  bool read_mostly = false;  // each place that reads the pages keeps a copy until a write

  friend bool operator==(const SegmentPlacement&, const SegmentPlacement&) = default;
};

// The placement that a program wants for a segment. Members that are not set change nothing.
struct WantedPlacement {
  Place preferred = Place::nowhere();
  Place accessed_by = Place::nowhere();
  std::optional<bool> read_mostly = std::nullopt;
};

struct DevicePlacement {
  // The bytes of the device's memory that managed pages may use before prefetches stop.
  std::size_t soft_budget_bytes = 0;
  bool coherent = false;  // hints would change nothing that a program needs
  bool has_own_memory = true;
};

// Returns where memory of this kind, requested for `device`, is used first.
inline Place place_of_use(Facade facade, int device) {
  return facade == Facade::kDevice ? Place::device(device) : Place::host();
}

class PlacementPlanner {
 public:
  PlacementPlanner(Policy policy, std::vector<DevicePlacement> devices, ResidencyLedger& ledger,
                   HintCounters& counters);

  Policy policy() const { return policy_; }

  // Plans the default advice for a new span. Sets `*placement` for the span's segments.
  HintPlan plan_span(void* address, std::size_t size_bytes, Facade facade, int device,
                     SegmentPlacement* placement);

  // Plans a prefetch of whole pages that a block is about to use at `place`. The pages were never
  // used before, or were last used at another place.
  HintPlan plan_use(void* address, std::size_t size_bytes, Place place);

  // Plans the move of a range to `destination`. `placement` is the segment's placement if the range
  // is one whole segment, else nullptr.
  HintPlan plan_move(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                     Place destination);

  // Plans the prefetch of a range that the program wants: also to and from a coherent device, if it
  // has memory of its own.
  HintPlan plan_wanted_move(void* address, std::size_t size_bytes, Place destination);

  // Plans the advice that a program wants for a range. `placement` is the segment's placement if
  // the range is one whole segment, else nullptr: then all advice is sent, and none recorded.
  HintPlan plan_advice(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                       const WantedPlacement& wanted);

  struct PlacementEvents {
    std::vector<int> short_devices;       // devices for which a prefetch found no credit
    std::vector<int> devices_to_measure;  // another quarter of the soft budget is resident
  };
  // Returns whether take_events() would return events.
  bool has_news() const { return has_news_.load(std::memory_order_relaxed); }
  PlacementEvents take_events();

  // Sets the soft budget to its first value, or to the resident bytes plus the driver's
  // `free_bytes` if that is less: other programs then hold the rest. Call this only for a device
  // from which nothing has been evicted.
  void set_free_bytes(int device, std::size_t free_bytes);
  std::size_t soft_budget_bytes(int device) const;
  // Returns the bytes that may still be prefetched to the device.
  std::size_t credit_bytes(int device) const;

 private:
  bool is_suppressed(HintKind kind, Place place, bool is_wanted = false);
  void advise(HintPlan* plan, void* address, std::size_t size_bytes, Advice advice, Place place);
  void prefetch(HintPlan* plan, void* address, std::size_t size_bytes, Place destination,
                bool is_copied, bool is_wanted = false);

  struct Device {
    DevicePlacement placement;  // with the first value of the soft budget
    std::size_t soft_budget_bytes = 0;
    std::size_t next_look_bytes = 0;  // resident bytes at which to read the driver's figures again
    bool is_short = false;
    bool is_to_be_measured = false;
  };

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
