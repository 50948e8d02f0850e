// Where the pages of a range of memory are, and should be: advice, prefetch, discard, and
// questions.
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

  // The range is rounded outward to whole pages. kInvalidValue unless all of it is managed memory,
  // or mapped ordinary memory that devices reach.
  Status advise(MemoryRange range, Advice advice, int location);
  Status prefetch(int device, StreamHandle stream, MemoryRange range, int location);
  // The range is rounded inward to whole pages. Like the modelled driver, does nothing and returns
  // kOk for a range without a whole page, or of ordinary memory.
  Status discard(int device, StreamHandle stream, MemoryRange range);
  // Does the same for all ranges, in one call: the stream's later work waits for all of them. A
  // range that fails ends the call.
  Status move_batch(int device, StreamHandle stream, BatchKind kind,
                    const std::vector<RangeMove>& moves);

  // Whether the other calls accept the range.
  bool accept(MemoryRange range);
  Status describe(MemoryRange range, RangePlacement* out);
  Status policy_at(const void* address, Policy* out);
  Status residency(MemoryRange range, int location, std::size_t* out_bytes);
  // Writes the location of the page at every `step_bytes` of the range: a device, kHost or
  // kNoLocation. A page with copies at several places counts at the first device.
  Status sample_locations(MemoryRange range, std::size_t step_bytes, std::vector<int>* out);

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
