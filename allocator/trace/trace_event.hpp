// One event of the allocator, in memory and in a trace file: 48 bytes, in the byte order of the
// machine that wrote it. docs/reference/trace.md states what each field means for each kind of
// event; the functions at the end fill the fields accordingly. Plain values without a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <uvmalloc/device_runtime.hpp>
#include <uvmalloc/facade.hpp>
#include <uvmalloc/place.hpp>

namespace uvm {

enum class TraceKind : std::uint8_t {
  kAllocate = 1,
  kFree,
  kMove,
  kAdvise,
  kPrefetch,
  kDiscard,
  kUse,      // a stream works on a block
  kStream,   // a stream is seen for the first time, or was destroyed
  kFailure,  // a request that could not be served, or a driver call that failed
  kMark,     // a string that the program wrote
  // Work that the program puts on its streams, as a simulated machine reports it.
  kKernel,  // a kernel; its touches follow, on the same thread
  kTouch,   // a range that the last kernel reads or writes
  kSignal,  // an event is recorded on a stream
  kWait,    // a stream or the host waits
  kSite,    // the place in the program that made the latest allocation at this address
};
inline constexpr std::uint8_t kLastTraceKind = static_cast<std::uint8_t>(TraceKind::kSite);
// Returns "allocate", "free" and so on.
std::string_view to_string(TraceKind kind);

// A time of the recorder's clock; 0 if the recorder is off.
using TraceTime = std::uint64_t;

inline constexpr std::uint8_t kNoFacade = 0xff;
inline constexpr std::int16_t kHostPlace = -1;
inline constexpr std::int16_t kNoPlace = -2;

// In TraceEvent::flags.
inline constexpr std::uint8_t kTraceAlreadyLive = 1;  // allocate: live before the trace began
inline constexpr std::uint8_t kTraceGone = 2;         // stream: it was destroyed

// In TraceEvent::detail of a kernel: the unit of the kernel's amount. A number below
// kTraceOperationTypes means operations, of the type with this number.
inline constexpr std::uint8_t kTraceOperationTypes = 5;
inline constexpr std::uint8_t kTraceCopyToDevice = 252;  // bytes over the link
inline constexpr std::uint8_t kTraceCopyToHost = 253;
inline constexpr std::uint8_t kTraceCopyInside = 254;  // bytes inside a device
inline constexpr std::uint8_t kTraceFixedTime = 255;   // nanoseconds

// In TraceEvent::detail of a wait.
enum class TraceWait : std::uint8_t {
  kStreamForSignal,
  kHostForSignal,
  kHostForStream,
  kHostForDevice,
};
inline constexpr std::uint8_t kLastTraceWait = static_cast<std::uint8_t>(TraceWait::kHostForDevice);

struct TraceEvent {
  TraceTime time = 0;
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;  // the requested size
  std::uint64_t extra = 0;       // the rounded size of the block, or the number of a string
  std::uint64_t stream = 0;      // the vendor's handle of the stream
  TraceKind kind = TraceKind::kMark;
  std::uint8_t facade = kNoFacade;
  std::uint8_t flags = 0;
  std::uint8_t detail = 0;  // an Advice, a RuntimeError, a kernel's unit, or a touch's access
  std::int16_t device = kNoPlace;  // a device's ordinal; the source of a move
  std::int16_t place = kNoPlace;   // the destination

  friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};
static_assert(sizeof(TraceEvent) == 48);

inline std::int16_t trace_place(Place place) {
  if (place.is_device()) return place.index;
  return place.is_host() ? kHostPlace : kNoPlace;
}

inline std::uint64_t trace_word(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// A block as recorded at its allocation, at its free, and in the list of blocks that are live at
// the start.
struct TraceBlock {
  Facade facade = Facade::kHost;
  int device = 0;
  const void* address = nullptr;
  std::size_t requested_bytes = 0;
  std::size_t block_bytes = 0;  // the rounded size
  StreamHandle stream = nullptr;
};

inline TraceEvent trace_event(TraceKind kind, TraceTime at, const TraceBlock& block) {
  TraceEvent event;
  event.time = at;
  event.address = trace_word(block.address);
  event.size_bytes = block.requested_bytes;
  event.extra = block.block_bytes;
  event.stream = trace_word(block.stream);
  event.kind = kind;
  event.facade = static_cast<std::uint8_t>(block.facade);
  event.device = static_cast<std::int16_t>(block.device);
  return event;
}

// Returns an event about a range of addresses on a device's stream.
inline TraceEvent trace_event(TraceKind kind, TraceTime at, int device, const void* address,
                              std::size_t size_bytes, StreamHandle stream) {
  TraceEvent event;
  event.time = at;
  event.address = trace_word(address);
  event.size_bytes = size_bytes;
  event.stream = trace_word(stream);
  event.kind = kind;
  event.device = static_cast<std::int16_t>(device);
  return event;
}

}  // namespace uvm
