// The machine's streams and events, and its virtual clock.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/engine/export.hpp"
#include "sim/engine/machine_calls.hpp"
#include "sim/engine/timeline.hpp"

namespace uvmsim {

class SharedState;

class UVMSIM_EXPORT Streams {
 public:
  explicit Streams(SharedState& shared) : shared_(shared) {}

  StreamHandle create_stream(int device, unsigned flags, bool blocking, int priority);
  Status destroy_stream(StreamHandle handle);
  // Returns a snapshot, or nullopt if the handle is invalid.
  std::optional<Stream> find_stream(int device, StreamHandle handle);
  // If a capture forbids a query, a wait or a recording, the status names the broken rule.
  Status query_stream(int device, StreamHandle handle);
  Status wait_for_stream(int device, StreamHandle handle);
  Status wait_for_device(int device);
  // Returns whether the device has incomplete work.
  bool is_busy(int device);

  EventHandle create_event(int device, unsigned flags, bool timing);
  Status destroy_event(EventHandle handle);
  // Returns the flags of the event, or nullopt if the handle is invalid.
  std::optional<unsigned> event_flags(EventHandle handle);
  // Returns kInvalidValue for kExternal if the stream is not being captured.
  Status record_event(int device, EventHandle event, StreamHandle stream,
                      EventScope scope = EventScope::kInternal);
  Status make_stream_wait(int device, StreamHandle stream, EventHandle event,
                          EventScope scope = EventScope::kInternal);
  Status query_event(EventHandle event);
  Status wait_for_event(EventHandle event);
  // Returns kInvalidHandle if a handle is invalid, an event was never recorded or has no timing, or
  // the events are of different devices. Returns kNotReady if an event is not complete.
  Status elapsed(EventHandle from, EventHandle to, std::int64_t* out_ns);

  std::uint64_t now_ns();
  void advance(std::uint64_t nanoseconds);

 private:
  SharedState& shared_;
};

}  // namespace uvmsim
