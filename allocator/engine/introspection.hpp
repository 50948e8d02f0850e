// Answers about blocks and about the allocator, and figures that programs report to it. The
// functions are CachingManagedAllocator's, and are described there.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <uvmalloc/types.hpp>
#include "allocator/cache/thread_caches.hpp"
#include "allocator/engine/fenced_blocks.hpp"
#include "allocator/engine/heap_state.hpp"
#include "allocator/statistics/segments.hpp"

namespace uvm {

class Introspection {
 public:
  Introspection(Machine& machine, HeapState& state, ThreadCaches& caches, FencedBlocks& fenced)
      : machine_(machine), state_(state), caches_(caches), fenced_(fenced) {}

  std::optional<BlockDescription> find(const void* address) const;
  bool has_taken(const void* address) const;
  std::map<Place, std::size_t> residency(const void* address, std::size_t size_bytes) const;
  Statistics statistics() const;
  Figures figures() const;
  void reset_peaks(Facade facade, int device);
  void reset_totals(Facade facade, int device);
  std::vector<SegmentDescription> segments() const;
  std::size_t budget_bytes() const;
  std::size_t free_bytes(int device, const MemoryFigures& driver) const;
  std::string start_trace(const std::string& file);
  void check_invariants() const;

  void set_memory_observer(MemoryObserver* observer);
  void set_device_limit(int device, std::size_t most_bytes);
  void note_copy(CopyReason reason, std::size_t size_bytes);
  void note_materialization(std::size_t copied_bytes, bool steal);
  void note_conversion(std::size_t size_bytes);
  // An automatic budget grows, or shrinks again, by the pages of memory that is converted.
  void change_budget_for_conversion(std::size_t size_bytes, bool grows);

  // Whether some use of a live block is on the host.
  static bool is_used_by_host(const LockedHeap& heap, const Block& block);

 private:
  static std::size_t copies(const LockedHeap& heap, int device);

  Machine& machine_;
  HeapState& state_;
  ThreadCaches& caches_;
  FencedBlocks& fenced_;
};

}  // namespace uvm
