// Reads a trace file (docs/reference/trace.md) into memory, in the order of events. Every length in
// the file is checked before use: any file gives a trace or a TraceFormatError. Thread-safe.
//
// Events are ordered by time, and events of one thread stay in their order. If several threads have
// events at the same time, the free of a live block comes before the next allocation at its
// address. So a trace replays even if the clock was coarse.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/trace/trace_event.hpp"
#include "allocator/trace/trace_format.hpp"

namespace uvm {

// The message is "FILE: at byte N: the fault".
class TraceFormatError : public std::runtime_error {
 public:
  TraceFormatError(const std::string& file, std::uint64_t offset, const std::string& what);
  std::uint64_t offset() const { return offset_; }

 private:
  std::uint64_t offset_;
};

// An event, with its time in nanoseconds since the start of the trace.
struct ThreadEvent : TraceEvent {
  std::uint32_t thread = 0;  // 0: the recorder itself, for blocks that were already live
};

struct Trace {
  struct Device {
    std::string name;
    std::uint64_t capacity_bytes = 0;
  };
  std::uint64_t process = 0;
  std::string program;
  std::int64_t start_time_of_day_ns = 0;
  TraceClockKind clock = TraceClockKind::kNanoseconds;
  std::vector<Device> devices;
  std::vector<ThreadEvent> events;
  std::vector<std::string> texts;  // text number n is at index n - 1
  std::uint64_t dropped = 0;       // events that could not be written
  bool finished = false;           // the recorder was stopped, so nothing is missing at the end

  // Returns the text of a mark, a failure or a call site; empty for other events or if not written.
  std::string text(const TraceEvent& event) const;
};

enum class UnfinishedTrace : std::uint8_t {
  kRefuse,
  kAccept,  // reads the trace of a killed process up to its last whole chunk
};

// Throws TraceFormatError, or std::system_error if the file cannot be read.
Trace read_trace(const std::string& file, UnfinishedTrace unfinished = UnfinishedTrace::kRefuse);

}  // namespace uvm
