// Figures of the allocator: plain values, read under its lock. Sizes are in bytes.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <uvmalloc/facade.hpp>

namespace uvm {

struct Gauge {
  std::uint64_t current = 0;
  std::uint64_t peak = 0;
  std::uint64_t increased = 0;  // total since the start
  std::uint64_t decreased = 0;

  void increase(std::uint64_t amount) {
    current += amount;
    increased += amount;
    if (current > peak) peak = current;
  }
  void decrease(std::uint64_t amount) {
    current -= amount;
    decreased += amount;
  }
  void reset_peak() { peak = current; }
  void reset_totals() { increased = decreased = 0; }
};

// Blocks of one memory kind, device and size class.
struct ClassStatistics {
  Gauge allocations;      // blocks with callers
  Gauge allocated_bytes;  // as rounded
  Gauge requested_bytes;  // before rounding
  Gauge active_blocks;    // with callers, or freed and behind a fence
  Gauge active_bytes;
  Gauge active_requested_bytes;  // before rounding
  Gauge segments;                // of 2 MiB, in pools, with or without blocks
  Gauge reserved_bytes;
  std::uint64_t cache_hits = 0;  // requests served without a new segment

  template <class Function>
  void each_gauge(Function apply) {
    for (Gauge* gauge : {&allocations, &allocated_bytes, &requested_bytes, &active_blocks,
                         &active_bytes, &active_requested_bytes, &segments, &reserved_bytes}) {
      apply(*gauge);
    }
  }
};

// Small blocks are objects of an arena, which has segments of its own; large blocks are all others.
enum class SizeClass : std::uint8_t { kSmall, kLarge };
inline constexpr std::size_t kSizeClasses = 2;

// Why a move to or from a device copied bytes instead of sharing them.
enum class CopyReason : std::uint8_t {
  kSmallBlock,      // below the threshold: shares pages with neighbours, or comes from malloc
  kForeign,         // memory of others (numpy, a file mapping, shared memory, another allocator)
  kExported,        // a raw pointer to the block has left to other code
  kPartialStorage,  // a view of a part that cannot be shared: by torch's version, by alignment, or
                    // because an earlier write had to copy the storage after a part had moved
  kLayout,      // the result's strides differ, or it is conjugate, negative, quantised or sparse
  kConversion,  // the element type, layout or pinning changes in the same call
  kCapturing,   // a stream is capturing
  kAliased,     // others see writes to these bytes, so they cannot be copy-on-write
  kMayBeRead,   // a conversion would take away bytes that somebody may read
  kMode,        // UVMALLOC_MOVE=copy or UVMALLOC_POLICY=off
};
inline constexpr std::size_t kCopyReasons = 10;
const char* to_string(CopyReason reason);

struct MoveStatistics {
  std::uint64_t host_to_device = 0;
  std::uint64_t device_to_host = 0;
  std::uint64_t device_to_device = 0;
  std::uint64_t bytes = 0;  // moved without a copy
  struct Copies {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_at_or_above_threshold = 0;
  };
  std::array<Copies, kCopyReasons> copies{};

  std::uint64_t total() const { return host_to_device + device_to_host + device_to_device; }
};

// CPU tensors in the C library's memory whose bytes were copied into managed memory at their first
// move.
struct ConversionStatistics {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

// First writes to one side of a shared block.
struct MaterializationStatistics {
  std::uint64_t copies = 0;
  std::uint64_t bytes = 0;
  std::uint64_t steals = 0;  // the other side was gone, so nothing was copied
};

// Pools of one memory kind, device and stream, counted since the pools were made for an earlier
// stream.
struct StreamStatistics {
  Facade facade = Facade::kHost;
  int device = 0;
  std::uintptr_t stream = 0;      // the handle; 0 for host and pinned
  std::int64_t live_bytes = 0;    // allocated from these pools, less freed into them
  std::int64_t peak_bytes = 0;    // exact if one thread uses the stream, else an upper bound
  std::uint64_t allocations = 0;  // since the start
  std::uint64_t allocated_bytes = 0;
  std::uint64_t free_bytes = 0;  // in the pools' indexes
  std::uint64_t largest_free_bytes = 0;
};

// Memory of a private pool of the device. The figures of the last 256 pools that have ended stay
// until they are reset.
struct PrivatePoolStatistics {
  int device = 0;
  std::uint64_t id = 0;
  std::array<Gauge, kSizeClasses + 1> reserved_bytes;  // the last: all classes together

  bool is_empty() const {
    const Gauge& all = reserved_bytes[kSizeClasses];
    return all.peak == 0 && all.increased == 0 && all.decreased == 0;
  }
};

// Driver calls of one kind, and their times.
struct CallTimes {
  std::uint64_t calls = 0;
  std::chrono::nanoseconds total{0};
  std::chrono::nanoseconds longest{0};
  std::chrono::nanoseconds shortest{0};

  void add(std::chrono::nanoseconds taken) {
    shortest = calls == 0 ? taken : std::min(shortest, taken);
    longest = std::max(longest, taken);
    total += taken;
    ++calls;
  }
};

// Slow work for one memory kind on one device, since the start or reset_totals().
struct ServiceStatistics {
  std::uint64_t pressure_rounds = 0;  // times everything cached was given back for one request
  std::uint64_t out_of_memory = 0;
  std::uint64_t fence_waits = 0;  // host waits for the fences of all freed blocks
  CallTimes span_allocations;     // in the driver
  CallTimes span_frees;
};

// Copies of live host blocks for forked children.
struct ForkStatistics {
  std::uint64_t forks = 0;         // with live host blocks
  std::uint64_t copied_bytes = 0;  // written anew
  std::uint64_t shared_bytes = 0;  // unchanged since the copy for an earlier child
  std::uint64_t without_copy = 0;  // forks whose child has no copy: beyond the limit, or failed
  std::chrono::nanoseconds time{0};
};

// Figures that are counted under the state lock. They hold no pointers, because a FigureStore keeps
// them in a file, which may outlive the process.
struct Totals {
  Gauge touched_bytes;                     // 2 MiB pages given to pools since their span was made
  Gauge span_bytes;                        // reserved from the driver: address space
  std::array<Gauge, kFacades> pool_bytes;  // 2 MiB pages of pools, by memory kind
  MoveStatistics moves;
  ConversionStatistics conversions;
  MaterializationStatistics materializations;
  ForkStatistics forks;
  std::uint64_t discarded_bytes = 0;
  std::uint64_t fences = 0;
  std::uint64_t recalls = 0;          // blocks taken back from a place that they had moved to
  std::uint64_t pressure_rounds = 0;  // times everything cached was given back for one request
  std::uint64_t out_of_memory = 0;
};

struct Statistics : Totals {
  std::array<std::vector<ServiceStatistics>, kFacades> service;  // [facade][device]
  // [facade][device][class]. The last class is all together, with peaks of its own.
  std::array<std::vector<std::array<ClassStatistics, kSizeClasses + 1>>, kFacades> classes;
  std::vector<StreamStatistics> streams;
  std::vector<PrivatePoolStatistics> private_pools;
  // Live bytes, rounded. The peak is since the last reset_peaks(). With several devices it is the
  // sum of their peaks, and may exceed the peak of live_bytes.
  std::array<Gauge, kFacades> facade_bytes;
  std::array<std::uint64_t, kFacades> allocations{};
  std::array<std::uint64_t, kFacades> cache_hits{};
  Gauge live_bytes;  // all memory kinds
  std::uint64_t thread_cached_bytes = 0;
  std::uint64_t free_bytes = 0;          // in pools, free for their streams
  std::uint64_t largest_free_bytes = 0;  // the largest free block
  // The part of touched_bytes in whole pages without a block of a caller, of a thread's cache or
  // behind a fence.
  std::uint64_t touched_not_used_bytes = 0;
  std::uint64_t metadata_bytes = 0;  // records and tables, in ordinary memory
  std::size_t budget_bytes = 0;
};

}  // namespace uvm
