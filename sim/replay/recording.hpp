// A program's work on memory that can migrate, with the streams of this work: enough to replay the
// work on any simulated machine without the program. Pages are numbered from 0 through all 2 MiB
// blocks of the recording, in the order of their addresses. tools/machine_replay makes a recording
// from a trace. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine/cost_model.hpp"
#include "sim/engine/page_range.hpp"
#include "sim/engine/policy.hpp"
#include "sim/engine/units.hpp"

namespace uvmsim::replay {

enum class EventKind : std::uint8_t {
  kKernel,    // a kernel with its touches
  kCopy,      // an explicit copy or fill, with its touches
  kAllocate,  // the allocator hands out `pages`; the machine does nothing
  kFree,      // the allocator takes them back; the machine does nothing
  kAdvise,    // a hint, like the next three
  kPrefetch,
  kDiscard,
  kSignal,          // `signal` stands for the current work of the stream
  kStreamWait,      // the stream waits for `signal`
  kHostWait,        // the host waits for `signal`
  kHostWaitStream,  // the host waits for the stream
  kHostWaitDevice,  // the host waits for all streams of the device
  kMark,            // a step begins; see Recording::marks
};

inline constexpr bool is_hint(EventKind kind) {
  return kind == EventKind::kAdvise || kind == EventKind::kPrefetch || kind == EventKind::kDiscard;
}

struct Touch {
  PageRange pages;
  std::uint64_t size_bytes = 0;  // less than the size of `pages` if a page is touched in part
  int access = 0;                // UVMSIM_READ, UVMSIM_WRITE or both
  std::uint32_t block = 0;       // the allocation that holds the pages; same as Event::block
};

struct Event {
  EventKind kind = EventKind::kKernel;
  CopyWay way = CopyWay::kToDevice;              // kCopy
  OperationType type = OperationType::kFloat32;  // kKernel
  Advice advice = Advice::kSetReadMostly;        // kAdvise
  bool is_timed = false;                         // kKernel: `amount` is nanoseconds
  int device = 0;
  int location = kNoLocation;     // kAdvise, kPrefetch
  std::uint32_t stream = 0;       // index in Recording::streams
  std::uint32_t first_touch = 0;  // kKernel, kCopy: index in Recording::touches
  std::uint32_t touch_count = 0;
  std::uint32_t signal = 0;  // below Recording::signal_count
  std::uint32_t block = 0;   // kAllocate, kFree: the same number in both
  PageRange pages{0, 0};     // kAllocate, kFree, kAdvise, kPrefetch, kDiscard
  // Operations; bytes of a copy or of an allocation; for advice the 2 MiB blocks of its range,
  // including blocks without allocations, which cost nothing.
  std::uint64_t amount = 0;
  std::uint64_t other_bytes = 0;  // kKernel: bytes that it moves in memory outside the recording
  std::uint64_t recorded_ns = 0;  // real time since the start of the recording
};

struct Mark {
  std::size_t event = 0;  // index among the events
  std::string text;
};

struct Recording {
  struct Stream {
    int device = 0;
  };
  std::vector<Event> events;
  std::vector<Touch> touches;
  std::vector<Stream> streams;
  std::vector<Mark> marks;
  std::vector<std::uint64_t> block_addresses;  // of each 2 MiB block
  std::size_t signal_count = 0;
  std::size_t allocation_count = 0;
  int device_count = 1;
  // Touches left out because the recording does not know their memory.
  std::size_t unknown_touches = 0;

  std::size_t page_count() const { return block_addresses.size() * kPagesPerBlock; }
};

}  // namespace uvmsim::replay
