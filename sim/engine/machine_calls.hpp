// Arguments and results of the machine's calls. Plain values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/capture.hpp"
#include "sim/engine/cost_model.hpp"
#include "sim/engine/graph.hpp"
#include "sim/engine/location.hpp"

namespace uvmsim {

// A range of addresses in the user view.
struct MemoryRange {
  const void* address;
  std::size_t size_bytes;

  std::uintptr_t start() const { return reinterpret_cast<std::uintptr_t>(address); }
};

// A range of a batched call.
struct RangeMove {
  MemoryRange range;
  int location = kHost;  // of a prefetch
};
enum class BatchKind { kPrefetch, kDiscard, kDiscardAndPrefetch };

// The kind of memory at one end of a copy, as the caller states it. For kUnknown, the machine looks
// up the kind.
enum class CopyEnd { kUnknown, kHostMemory, kDeviceMemory };

struct Copy {
  void* to;
  const void* from;
  std::size_t width_bytes;
  CopyEnd to_end = CopyEnd::kUnknown;
  CopyEnd from_end = CopyEnd::kUnknown;
  std::size_t rows = 1;  // number of rows, each of width_bytes
  std::size_t to_pitch_bytes = 0;
  std::size_t from_pitch_bytes = 0;
};

// A copy as it appears in a trace. An end that is not managed or ordinary memory has size 0.
struct TracedCopy {
  CopyWay way = CopyWay::kToDevice;
  std::size_t size_bytes = 0;
  uvmsim_access from{};
  uvmsim_access to{};
};

struct Fill {
  void* to;
  std::size_t count;
  std::uint32_t value;
  std::size_t value_bytes;               // 1, 2 or 4
  NodeKind node_kind = NodeKind::kFill;  // the kind of its graph node
};

// A kernel: the memory that it uses, its cost, and the function that does its work on device views.
struct Kernel {
  std::vector<uvmsim_access> accesses;
  KernelWork work;
  std::function<bool()> body;  // returns false if the launch failed; empty: the kernel does nothing
};

using HostFunction = std::function<void()>;

struct CaptureInfo {
  CaptureState state = CaptureState::kNone;
  // Valid while the capture is active.
  std::uint64_t id = 0;
  GraphHandle graph = nullptr;
  GraphNode* const* dependencies = nullptr;  // valid until the next call with that stream
  std::size_t dependency_count = 0;
};

// Decides whether an event in a capture becomes a node that is visible outside the graph.
enum class EventScope { kInternal, kExternal };

enum class Wait { kNo, kYes };

struct MemoryUse {
  std::size_t capacity_bytes;
  std::size_t unevictable_bytes;
  std::size_t managed_bytes;
  std::size_t peak_bytes;       // since the last reset_peak_use
  std::size_t host_free_bytes;  // if devices share the host's memory; else the largest value

  std::size_t free_bytes() const {
    return std::min(capacity_bytes - unevictable_bytes - managed_bytes, host_free_bytes);
  }
};

// Host memory used by managed and pinned memory.
struct HostUse {
  std::size_t capacity_bytes;
  std::size_t used_bytes;
  std::size_t peak_bytes;
};

struct RangePlacement {
  bool read_mostly;           // on all pages
  int preferred;              // kNoLocation if unset, or if pages differ
  std::uint64_t accessed_by;  // Policy's bits that are set on all pages
  int last_prefetch;          // kNoLocation if none, or if pages differ
};

// Identifies device memory for another process.
struct SharedMemory {
  int process;
  int memfd;           // the descriptor in that process
  std::size_t offset;  // in the memfd
  std::size_t size_bytes;
  std::uint64_t id;  // ID of the allocation in that process
};

}  // namespace uvmsim
