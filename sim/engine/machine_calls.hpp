// Arguments and answers of the machine's calls. They are plain values.
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

namespace uvmsim {

// A stretch of addresses as the program knows them.
struct MemoryRange {
  const void* address;
  std::size_t size_bytes;
};

// The kind of memory at an end of a copy, as the caller says it. The machine finds out kUnknown.
enum class CopyEnd { kUnknown, kHostMemory, kDeviceMemory };

struct Copy {
  void* to;
  const void* from;
  std::size_t width_bytes;
  CopyEnd to_end = CopyEnd::kUnknown;
  CopyEnd from_end = CopyEnd::kUnknown;
  std::size_t rows = 1;  // of width_bytes each
  std::size_t to_pitch_bytes = 0;
  std::size_t from_pitch_bytes = 0;
};

// A copy as a trace has it. Ends outside of memory whose pages move have no bytes.
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
  NodeKind node_kind = NodeKind::kFill;  // what a graph calls it
};

// A kernel together with the work that it does on the device views.
struct Kernel {
  std::vector<uvmsim_access> accesses;
  KernelWork work;
  std::function<bool()> body;  // false: the launch has failed; none: nothing to do
};

using HostFunction = std::function<void()>;

struct CaptureInfo {
  CaptureState state = CaptureState::kNone;
  // While it is active.
  std::uint64_t id = 0;
  GraphHandle graph = nullptr;
  GraphNode* const* dependencies = nullptr;  // until the next call with that stream
  std::size_t dependency_count = 0;
};

// Whether an event that a capture meets becomes a node that programs outside the graph see.
enum class EventScope { kInternal, kExternal };

enum class Wait { kNo, kYes };

struct MemoryUse {
  std::size_t capacity_bytes;
  std::size_t unevictable_bytes;
  std::size_t managed_bytes;
  std::size_t peak_bytes;       // since the last reset_peak_use
  std::size_t host_free_bytes;  // of a memory that the host shares, else more than any

  std::size_t free_bytes() const {
    return std::min(capacity_bytes - unevictable_bytes - managed_bytes, host_free_bytes);
  }
};

// Memory of the host that managed and pinned memory take.
struct HostUse {
  std::size_t capacity_bytes;
  std::size_t used_bytes;
  std::size_t peak_bytes;
};

struct RangePlacement {
  bool read_mostly;           // everywhere
  int preferred;              // kNoLocation where unset or not the same everywhere
  std::uint64_t accessed_by;  // Policy's bits, as far as they hold everywhere
  int last_prefetch;          // kNoLocation where none or not the same everywhere
};

// Device memory as another process finds it.
struct SharedMemory {
  int process;
  int memfd;           // its number there
  std::size_t offset;  // in the memfd
  std::size_t size_bytes;
  std::uint64_t id;  // of the allocation, in that process
};

}  // namespace uvmsim
