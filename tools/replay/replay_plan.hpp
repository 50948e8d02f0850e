// A trace as a flat list of operations: blocks are slots of an array and streams are numbers, so
// the replaying loop needs no lookups. A plain value, made once from a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/trace/trace_reader.hpp"

namespace uvm::replay {

enum class ReplayKind : std::uint8_t {
  kAllocate,
  kAllocateFailed,  // the traced allocator had no memory for the request
  kFree,
  kUse,
  kMove,
};

struct ReplayOperation {
  std::uint64_t size_bytes = 0;
  std::uint32_t slot = 0;
  std::int32_t stream = 0;
  ReplayKind kind = ReplayKind::kAllocate;
  std::uint8_t facade = 0;
  std::int16_t device = 0;  // for moves the source, as in TraceEvent
  std::int16_t place = 0;   // for moves, the destination
};
static_assert(sizeof(ReplayOperation) == 24);

struct ReplayStream {
  int device = 0;
  std::uint64_t handle = 0;  // handle in the traced process; 0: the default stream
};

struct ReplayPlan {
  std::vector<ReplayOperation> operations;
  std::vector<std::size_t> events;  // by operation: the event's number in the trace
  std::vector<ReplayStream> streams;
  std::vector<std::size_t> marks;  // by mark: the number of operations before it
  std::size_t slots = 0;           // the most blocks that are live at the same time
  int devices = 0;                 // number of devices in the traced machine
  // Frees, uses and moves of blocks that were allocated before the trace began.
  std::size_t unknown_blocks = 0;
};

// Makes the plan. If the trace allocates an address again without a free, the plan first frees the
// old block. Throws std::invalid_argument for an allocation without a memory kind or device.
ReplayPlan make_plan(const Trace& trace);

}  // namespace uvm::replay
