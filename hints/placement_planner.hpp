// Decides where memory should be, and which hints move it there. The input is the place that a
// facade wants, the advice so far, and the places of the pages in the residency ledger. The output
// is a plan of hints, often an empty one. It calls no driver. All placement decisions of uvmalloc
// pass through here.
//
// Rules (numbers from the RFC and the drivers' behaviour):
//  * A span is advised once when it is made. Device facade: preferred location is the device. Host
//    and pinned facade: preferred location is the host, accessed by the current device (RFC-0023,
//    "Tuning Managed Memory").
//  * Advice is given only to whole segments, because advice on a part splits the driver's range for
//    good, and only if it changes something.
//  * A segment whose preferred location would change for the third time moves back and forth. It is
//    advised preferred=host and accessed-by=device once, and only prefetched from then on.
//  * A prefetch to a device needs credits: bytes of the soft budget that are not resident there by
//    the ledger. It covers whole 2 MiB pages only.
//  * No hint is sent for devices that share the host's memory or page tables, nor by policies other
//    than automatic.
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
  bool read_mostly = false;  // each place that reads has a copy, until a write

  friend bool operator==(const SegmentPlacement&, const SegmentPlacement&) = default;
};

// The placement that a program wants for a segment. Members that are not set change nothing.
struct WantedPlacement {
  Place preferred = Place::nowhere();
  Place accessed_by = Place::nowhere();
  std::optional<bool> read_mostly = std::nullopt;
};

struct DevicePlacement {
  // Bytes of its memory that managed pages may fill before prefetches stop.
  std::size_t soft_budget_bytes = 0;
  bool coherent = false;  // hints would change nothing
};

// The place where memory of a facade, requested for that device, is used at first.
inline Place place_of_use(Facade facade, int device) {
  return facade == Facade::kDevice ? Place::device(device) : Place::host();
}

class PlacementPlanner {
 public:
  static constexpr unsigned kPingPongChanges = 2;

  PlacementPlanner(Policy policy, std::vector<DevicePlacement> devices, ResidencyLedger& ledger,
                   HintCounters& counters);

  Policy policy() const { return policy_; }

  // Default advice for a new span; `*placement` is the first placement of its segments.
  HintPlan plan_span(void* address, std::size_t size_bytes, Facade facade, int device,
                     SegmentPlacement* placement);

  // A run of whole pages that a block will use at `place` now: never used before, or last used
  // elsewhere.
  HintPlan plan_use(void* address, std::size_t size_bytes, Place place);

  // A move of `size_bytes` at `address`. `placement` is the segment's if the range is one whole
  // segment, nullptr if it is less.
  HintPlan plan_move(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                     Place destination);

  // Advice that a program wants for a range. `placement` is the segment's if the range is one whole
  // segment. It is nullptr if the range is less: then no earlier advice is known, and none is
  // recorded.
  HintPlan plan_advice(void* address, std::size_t size_bytes, SegmentPlacement* placement,
                       const WantedPlacement& wanted);

  struct News {
    std::vector<int> short_devices;       // a prefetch found no credit there
    std::vector<int> devices_to_measure;  // another quarter of the soft budget is resident there
  };
  // Whether take_news() has something to tell.
  bool has_news() const { return has_news_.load(std::memory_order_relaxed); }
  News take_news();

  // The driver has so many bytes free on a device of which nothing was evicted so far. The soft
  // budget follows, because other programs have the rest; it is never larger than at first.
  void set_free_bytes(int device, std::size_t free_bytes);
  std::size_t soft_budget_bytes(int device) const;
  // Bytes that may still be prefetched to the device.
  std::size_t credit_bytes(int device) const;

 private:
  bool silent(HintKind kind, Place place);
  void advise(HintPlan* plan, void* address, std::size_t size_bytes, Advice advice, Place place);
  void prefetch(HintPlan* plan, void* address, std::size_t size_bytes, Place destination,
                bool is_copied);

  struct Device {
    DevicePlacement placement;  // with the soft budget at first
    std::size_t soft_budget_bytes = 0;
    std::size_t next_look_bytes = 0;  // of resident memory
    bool is_short = false;
    bool is_to_be_measured = false;
  };

  static constexpr std::size_t kLooks = 4;  // at the driver's figures, while a device is filled

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
