// Stream capture: work on a capturing stream becomes nodes of a graph instead of taking effect. The
// rules for other calls during a capture come from the CUDA guide ("Creating a graph using stream
// capture") and from the descriptions of the calls. A forbidden call invalidates the captures
// concerned. An invalidated capture refuses all work until it ends.
//
// Owns the running captures; streams and events point to the captures they belong to. Guarded by
// the machine's mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/engine/graph.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

struct Stream;
struct Event;

// Decides which other calls are allowed during a capture. Each thread also has such a mode.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };

enum class CaptureState { kNone, kActive, kInvalidated };

struct Capture {
  std::uint64_t id;  // unique in the process, never 0
  CaptureMode mode;
  std::uint64_t thread;          // number of the thread that began the capture
  Stream* origin;                // the stream on which the capture began
  std::vector<Stream*> streams;  // the origin and the streams that joined by an event
  std::shared_ptr<Graph> graph;  // null after the end of the capture
  bool invalidated = false;

  bool has_ended() const { return graph == nullptr; }
};

enum class DependencyUpdate { kAdd, kSet };

class Captures {
 public:
  bool any() const { return !active_.empty(); }
  bool is_capturing(const Graph& graph) const;

  // Returns kCaptureUnsupported for the legacy default stream, kIllegalState if the stream is being
  // captured.
  Status begin(Stream& stream, CaptureMode mode);

  // Ends the capture on all its streams and moves its graph to `out`, even on failure. Only these
  // errors leave the capture running: kIllegalState (the stream is not being captured),
  // kCaptureUnmatched (the stream only joined the capture) and kCaptureWrongThread.
  Status end(Stream& stream, std::shared_ptr<Graph>* out);

  // Call this when a stream is destroyed: invalidates the capture of the stream. If the capture
  // began on that stream, ends the capture and moves its graph to `out`.
  void forget(Stream& stream, std::shared_ptr<Graph>* out);

  // Call this before work on a stream. Returns kOk if the work may be recorded (during a capture)
  // or run.
  Status admit_work(Stream& stream);

  // Call this before work on a stream. Returns nullopt if the work must run now. Otherwise returns
  // the call's status: kOk if the work was recorded, else the broken rule of captures. A null
  // `work` cannot be recorded.
  std::optional<Status> record_or_refuse(Stream& stream, NodeKind kind, const NodeWork& work);
  // Like record_or_refuse(), for work that the caller waits for.
  std::optional<Status> refuse_blocking(Stream& stream);

  // Call this before a call that a capture would not see, or that waits (allocation, query,
  // synchronisation). The modes of the calling thread and of the captures decide.
  Status admit_unsafe_call();

  // For interfaces that refuse a call during a capture independently of the mode of the thread.
  // Returns kCaptureUnsupported if a capture of this thread is not relaxed, or a capture of another
  // thread is global. Invalidates no capture.
  Status refuse_beside() const;

  // Call this before a query of, or a wait for, a stream, an event, or all work of a device.
  Status admit_wait(const Stream& stream);
  Status admit_wait(const Event& event);
  Status admit_device_wait(int device);

  // Writes the state. Returns kCaptureImplicit if a capture makes a legacy default stream unusable.
  Status state(const Stream& stream, CaptureState* out) const;

  // The stream must be in a capture.
  static void record_event(Event& event, const Stream& stream);
  // Call this if the event was recorded in a capture, or if the stream is being captured.
  Status wait_event(Stream& stream, const Event& event);
  Status update_dependencies(Stream& stream, const std::vector<GraphNodeHandle>& nodes,
                             DependencyUpdate update);

 private:
  // Records work on a stream that is being captured; admit_work() must have returned kOk.
  // refuse_work() is for work that graphs do not support: it invalidates the capture, and returns
  // the error.
  static void record(Stream& stream, NodeKind kind, NodeWork work);
  static Status refuse_work(Stream& stream);
  static void invalidate(Capture& capture) { capture.invalidated = true; }
  static void join(Stream& stream, const std::shared_ptr<Capture>& capture);
  std::shared_ptr<Graph> detach(const std::shared_ptr<Capture>& capture);
  bool conflicts_with_legacy_stream(const Stream& stream, const Capture& capture) const;

  std::vector<std::shared_ptr<Capture>> active_;
  std::uint64_t next_id_ = 1;
};

}  // namespace uvmsim
