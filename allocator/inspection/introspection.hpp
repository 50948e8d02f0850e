// Answers questions about blocks and the allocator. Thread-safe. Functions without a LockedHeap
// take the state lock themselves; functions that add up or list all blocks stop the world first.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include <uvmalloc/inspection.hpp>
#include <uvmalloc/types.hpp>
#include "allocator/cache/thread_caches.hpp"
#include "allocator/placement/live_planner.hpp"
#include "allocator/state/heap_state.hpp"
#include "allocator/statistics/segments.hpp"
#include "allocator/streams/fenced_blocks.hpp"

namespace uvm {

class Introspection {
 public:
  Introspection(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced,
                const LivePlanner& live)
      : machine_(machine), state_(state), caches_(caches), fenced_(fenced), live_(live) {}

  // Describes the block that holds `address`. Works in a forked child too.
  std::optional<BlockDescription> find(const void* address) const;
  // Returns whether `address` is in a span, used or not.
  bool has_taken(const void* address) const;
  // Returns how many bytes of the range are at each place, in whole pages, according to the records
  // of hints, moves and plans.
  std::map<Place, std::size_t> residency(const void* address, std::size_t size_bytes) const;
  DeviceResidency device_residency(int device) const;
  std::map<Place, std::size_t> exact_residency(const void* address, std::size_t size_bytes) const;
  // Returns a snapshot of all figures.
  Statistics statistics() const;
  // Returns the figures of the report.
  Figures figures() const;
  // Describes the spans and their blocks.
  std::vector<SegmentDescription> segments() const;
  // Returns the most bytes that the process may use now.
  std::size_t budget_bytes() const;
  // Returns the bytes of the device that the process can still get under the budgets, given the
  // driver's figures. Throws std::out_of_range if the device does not exist.
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;
  // Aborts the process if one of the invariants 1 to 9 is broken.
  void check_invariants() const;

  // Returns whether the block is live and used on the host.
  static bool is_used_by_host(const LockedHeap& heap, const Block& block);

 private:
  // Returns the place of each page that the range touches.
  std::vector<Place> believed_places(const void* address, std::size_t size_bytes) const;
  static std::size_t unused_bytes(const LockedHeap& heap, int device);

  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  FencedBlocks& fenced_;
  const LivePlanner& live_;
};

}  // namespace uvm
