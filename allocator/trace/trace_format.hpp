// The format of a trace file, version 4: a header, then chunks. The last chunk marks the trace as
// complete. Version 3 lacks call sites; version 2 also lacks kernels, touches, signals and waits;
// version 1 also lacks packed chunks. docs/reference/trace.md describes the format for readers in
// other languages. Plain values, written in their representation in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "allocator/trace/trace_event.hpp"

namespace uvm {

inline constexpr std::array<char, 8> kTraceMagic = {'U', 'V', 'M', 'T', 'R', 'A', 'C', 'E'};
inline constexpr std::uint32_t kTraceVersion = 4;
inline constexpr std::uint32_t kTraceByteOrder = 0x01020304;

enum class TraceClockKind : std::uint32_t {
  kNanoseconds = 0,  // CLOCK_MONOTONIC
  kTicks = 1,        // the processor's time stamp counter
};

// The devices follow the header, then the program's name.
struct TraceFileHeader {
  std::array<char, 8> magic = kTraceMagic;
  std::uint32_t version = kTraceVersion;
  std::uint32_t byte_order = kTraceByteOrder;
  std::uint32_t header_bytes = 0;  // devices and name included; the first chunk follows
  std::uint32_t event_bytes = sizeof(TraceEvent);
  std::uint64_t process = 0;
  std::int64_t start_time_of_day_ns = 0;  // since 1970-01-01 UTC
  std::uint64_t start_time = 0;           // on the clock of the events
  std::uint64_t start_monotonic_ns = 0;   // the same moment on CLOCK_MONOTONIC
  TraceClockKind clock = TraceClockKind::kNanoseconds;
  std::uint32_t device_count = 0;
  std::uint32_t program_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(TraceFileHeader) == 72);

struct TraceFileDevice {
  std::uint64_t capacity_bytes = 0;
  std::array<char, 56> name{};  // truncated if needed, and ended by 0
};
static_assert(sizeof(TraceFileDevice) == 64);

inline constexpr std::size_t kMostTraceDevices = 1024;

enum class TraceChunkKind : std::uint32_t {
  kEvents = 0x544e5645,  // "EVNT": `count` events of one thread, in that thread's order
  // "PACK": `value` models, which are events that represent equal events, then `count` words
  // (PackedTraceEvent), zero-padded to a multiple of 8 bytes. Times are relative to the time of
  // model 0.
  kPacked = 0x4b434150,
  kText = 0x54584554,  // "TEXT": text number `value`, `count` bytes, zero-padded to 8n bytes
  kEnd = 0x53444e45,   // "ENDS": the last chunk; `value` events could not be written
};

struct TraceChunkHeader {
  TraceChunkKind kind = TraceChunkKind::kEvents;
  std::uint32_t count = 0;
  std::uint32_t thread = 0;         // numbered from 1, in the order of first events
  std::uint32_t system_thread = 0;  // the system's number of the thread
  std::uint64_t value = 0;
  std::uint64_t time = 0;          // the time of writing, on the clock of the events
  std::uint64_t monotonic_ns = 0;  // the same moment on CLOCK_MONOTONIC
};
static_assert(sizeof(TraceChunkHeader) == 40);

// A chunk with its header is slightly smaller than 64 KiB.
inline constexpr std::size_t kTraceEventsPerChunk = 1364;
static_assert(sizeof(TraceChunkHeader) + kTraceEventsPerChunk * sizeof(TraceEvent) <= 64u << 10);
inline constexpr std::size_t kMostTraceTextBytes = 4096;

// A packed chunk with the other members of TraceBuffer is also slightly smaller than 64 KiB.
inline constexpr std::size_t kPackedWordsPerChunk = 6144;
inline constexpr std::size_t kPackedModelsPerChunk = 740;

// One word of a packed chunk: an event or a pause. The event is like one of the chunk's models, at
// a time after the last event. If `is_free`, its kind is kFree, because a block's allocation and
// free share one model. A pause adds to the time of the next event.
class PackedTraceEvent {
 public:
  PackedTraceEvent() = default;
  PackedTraceEvent(std::int64_t since_last, bool is_free, std::size_t model)
      : word_(static_cast<std::uint32_t>(since_last) << kTimeShift |
              std::uint32_t{is_free} << kFreeShift | static_cast<std::uint32_t>(model)) {}
  // Returns a pause for the part of `since_last` beyond a word; less_pause() returns the rest.
  static PackedTraceEvent pause(std::int64_t since_last) {
    return {pauses(since_last), false, kPauseModel};
  }
  static std::int64_t less_pause(std::int64_t since_last) {
    return since_last - (pauses(since_last) << kTimeBits);
  }

  static bool holds(std::int64_t since_last) {
    return static_cast<std::uint64_t>(since_last + kHalf) >> kTimeBits == 0;
  }
  static bool holds_with_pause(std::int64_t since_last) {
    return since_last < kHalf << kTimeBits && since_last >= -(kHalf << kTimeBits) + kHalf &&
           holds(pauses(since_last));
  }

  bool is_pause() const { return model() == kPauseModel; }
  // Returns the time of an event since the last one, or the length of a pause.
  std::int64_t since_last() const {
    const std::int64_t time = static_cast<std::int32_t>(word_) >> kTimeShift;
    return is_pause() ? time << kTimeBits : time;
  }
  bool is_free() const { return (word_ >> kFreeShift & 1) != 0; }
  std::size_t model() const { return word_ & kPauseModel; }

 private:
  static constexpr int kFreeShift = 13;
  static constexpr int kTimeShift = 14;
  static constexpr int kTimeBits = 32 - kTimeShift;
  static constexpr std::int64_t kHalf = std::int64_t{1} << (kTimeBits - 1);
  static constexpr std::uint32_t kPauseModel = (1u << kFreeShift) - 1;

  static std::int64_t pauses(std::int64_t since_last) { return (since_last + kHalf) >> kTimeBits; }

  std::uint32_t word_ = 0;
};
static_assert(sizeof(PackedTraceEvent) == 4);
static_assert(kPackedModelsPerChunk < 1u << 13);

}  // namespace uvm
