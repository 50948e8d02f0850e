// The current and wanted locations of a range's pages: advice, prefetch, discard, and queries.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/engine/export.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/policy.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

class SharedState;

class UVMSIM_EXPORT Placements {
 public:
  explicit Placements(SharedState& shared) : shared_(shared) {}

  // The range is rounded outward to whole pages. Returns kInvalidValue unless the whole range is
  // managed memory, or mapped ordinary memory that devices can access.
  Status advise(MemoryRange range, Advice advice, int location);
  Status prefetch(int device, StreamHandle stream, MemoryRange range, int location);
  // The range is rounded inward to whole pages. Like the modelled driver, does nothing and returns
  // kOk for a range without a whole page, or of ordinary memory.
  Status discard(int device, StreamHandle stream, MemoryRange range);
  // Does the same for all ranges in one call. Later work of the stream waits for all ranges. The
  // call ends at the first range that fails.
  Status move_batch(int device, StreamHandle stream, BatchKind kind,
                    const std::vector<RangeMove>& moves);

  // Returns whether the other calls accept the range.
  bool accept(MemoryRange range);
  Status describe(MemoryRange range, RangePlacement* out);
  Status policy_at(const void* address, Policy* out);
  Status residency(MemoryRange range, int location, std::size_t* out_bytes);
  // Writes the location of the page at every `step_bytes` of the range: a device, kHost or
  // kNoLocation. A page with copies at several locations counts as being on the first device.
  Status sample_locations(MemoryRange range, std::size_t step_bytes, std::vector<int>* out);

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
