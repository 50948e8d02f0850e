// The figures of the allocator: plain values, read under the allocator's lock. Sizes are in bytes.
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

// Figures of the blocks of one memory kind, device and size class.
struct ClassStatistics {
  Gauge allocations;      // live blocks
  Gauge allocated_bytes;  // rounded sizes
  Gauge requested_bytes;  // sizes before rounding
  Gauge active_blocks;    // live blocks, and freed blocks that wait for a fence
  Gauge active_bytes;
  Gauge active_requested_bytes;  // sizes before rounding
  Gauge segments;                // 2 MiB pages in pools, with or without blocks
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

// Small blocks are objects of an arena, which has its own segments. All other blocks are large.
enum class SizeClass : std::uint8_t { kSmall, kLarge };
inline constexpr std::size_t kSizeClasses = 2;

// The reasons why a move to or from a device copied bytes instead of sharing them.
enum class CopyReason : std::uint8_t {
  kSmallBlock,      // below the threshold: shares pages with neighbours, or comes from malloc
  kForeign,         // memory that uvmalloc did not allocate (numpy, a file mapping, shared memory,
                    // another allocator)
  kExported,        // other code has a raw pointer to the block
  kPartialStorage,  // a part that cannot be shared: because of torch's version, of alignment, or
                    // because an earlier write had to copy the storage after a part had moved
  kLayout,      // the result's strides differ, or it is conjugate, negative, quantised or sparse
  kConversion,  // the element type, layout or pinning changes in the same call
  kCapturing,   // a stream is being captured
  kAliased,     // other tensors see writes to these bytes, so copy-on-write is not possible
  kMayBeRead,   // a conversion would move bytes that other code may be reading
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

// CPU tensors in malloc's memory whose first move copied them into managed memory.
struct ConversionStatistics {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

// First writes to one side of a block that two tensors share.
struct MaterializationStatistics {
  std::uint64_t copies = 0;
  std::uint64_t bytes = 0;
  std::uint64_t steals = 0;  // the other side no longer existed, so nothing was copied
};

// Figures of the pools of one memory kind, device and stream. If the stream took over the pools of
// an earlier stream, the figures include those of the earlier stream.
struct StreamStatistics {
  Facade facade = Facade::kHost;
  int device = 0;
  std::uintptr_t stream = 0;      // the handle; 0 for host and pinned
  std::int64_t live_bytes = 0;    // bytes allocated from these pools minus bytes freed into them
  std::int64_t peak_bytes = 0;    // exact if one thread uses the stream, else an upper bound
  std::uint64_t allocations = 0;  // since the start
  std::uint64_t allocated_bytes = 0;
  std::uint64_t free_bytes = 0;  // in the pools' indexes
  std::uint64_t largest_free_bytes = 0;
};

// Memory of a private pool. The last 256 pools that have ended stay listed until they are reset.
struct PrivatePoolStatistics {
  int device = 0;
  std::uint64_t id = 0;
  std::array<Gauge, kSizeClasses + 1> reserved_bytes;  // the last gauge: all classes together

  bool is_empty() const {
    const Gauge& all = reserved_bytes[kSizeClasses];
    return all.peak == 0 && all.increased == 0 && all.decreased == 0;
  }
};

// Driver calls of one kind: their number and the times that they took.
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

// Slow operations for one memory kind on one device, since the start or reset_totals().
struct ServiceStatistics {
  std::uint64_t pressure_rounds = 0;  // times that all cached memory was given back for a request
  std::uint64_t out_of_memory = 0;
  std::uint64_t fence_waits = 0;  // times that the host waited for the fences of all freed blocks
  CallTimes span_allocations;     // driver calls that allocate and free spans
  CallTimes span_frees;
};

// Copies of live host blocks for forked children.
struct ForkStatistics {
  std::uint64_t forks = 0;         // forks with live host blocks
  std::uint64_t copied_bytes = 0;  // bytes newly written for a child
  std::uint64_t shared_bytes = 0;  // bytes unchanged since the copy for an earlier child
  std::uint64_t without_copy = 0;  // forks without a copy, because of the limit or a failure
  std::chrono::nanoseconds time{0};
};

// Figures that are counted under the state lock. They contain no pointers, because a FigureStore
// may keep them in a file that outlives the process.
struct Totals {
  Gauge touched_bytes;                     // 2 MiB pages given to pools minus discarded pages
  Gauge span_bytes;                        // reserved from the driver: address space
  std::array<Gauge, kFacades> pool_bytes;  // 2 MiB pages in pools, by memory kind
  MoveStatistics moves;
  ConversionStatistics conversions;
  MaterializationStatistics materializations;
  ForkStatistics forks;
  std::uint64_t discarded_bytes = 0;
  std::uint64_t fences = 0;
  std::uint64_t recalls = 0;          // blocks taken back from a place that they had moved to
  std::uint64_t pressure_rounds = 0;  // times that all cached memory was given back for a request
  std::uint64_t out_of_memory = 0;
  // The live planner's last comparison of all pages with the places that the driver reports: the
  // bytes that it expected on their device, and the part of them that was resident. 0: no
  // comparison yet.
  std::uint64_t believed_bytes = 0;
  std::uint64_t real_bytes = 0;
};

struct Statistics : Totals {
  std::array<std::vector<ServiceStatistics>, kFacades> service;  // [facade][device]
  // [facade][device][class]. The last class stands for all classes together and has its own peaks.
  std::array<std::vector<std::array<ClassStatistics, kSizeClasses + 1>>, kFacades> classes;
  std::vector<StreamStatistics> streams;
  std::vector<PrivatePoolStatistics> private_pools;
  // Live bytes, rounded. The peak is since the last reset_peaks(). With several devices it is the
  // sum of the peaks of the devices, which may exceed the peak of live_bytes.
  std::array<Gauge, kFacades> facade_bytes;
  std::array<std::uint64_t, kFacades> allocations{};
  std::array<std::uint64_t, kFacades> cache_hits{};
  Gauge live_bytes;  // all memory kinds
  std::uint64_t thread_cached_bytes = 0;
  std::uint64_t free_bytes = 0;          // in pools, free for requests of their streams
  std::uint64_t largest_free_bytes = 0;  // the size of the largest free block
  // The part of touched_bytes in whole pages that are in no live block, no block of a thread's
  // cache, and no block that waits for a fence.
  std::uint64_t touched_not_used_bytes = 0;
  std::uint64_t metadata_bytes = 0;  // records and tables of the allocator, in ordinary memory
  std::size_t budget_bytes = 0;
};

}  // namespace uvm
