// Stream capture: work put on a capturing stream becomes nodes of a graph instead of taking effect.
// The rules of what may be done meanwhile are the CUDA guide's ("Creating a graph using stream
// capture") and those of the calls' own descriptions. What a rule forbids invalidates the captures
// concerned: they then refuse everything until they are ended.
//
// Captures owns the captures that go on; streams and events point to theirs. Guarded by the
// machine's mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/engine/graph.hpp"
#include "sim/engine/status.hpp"

namespace uvmsim {

struct Stream;
struct Event;

// How much else may be done while a capture goes on; also the mode of a thread.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };

enum class CaptureState { kNone, kActive, kInvalidated };

struct Capture {
  std::uint64_t id;  // unique in the process, never 0
  CaptureMode mode;
  std::uint64_t thread;          // number of the one that began it
  Stream* origin;                // on which it began
  std::vector<Stream*> streams;  // the origin and those that joined by an event
  std::shared_ptr<Graph> graph;  // null once it has ended
  bool invalidated = false;

  bool has_ended() const { return graph == nullptr; }
};

enum class DependencyUpdate { kAdd, kSet };

class Captures {
 public:
  bool any() const { return !active_.empty(); }
  bool is_capturing(const Graph& graph) const;

  // kCaptureUnsupported for the legacy default stream, kIllegalState for a stream that captures.
  Status begin(Stream& stream, CaptureMode mode);

  // Takes every stream of the capture out of it and gives its graph to `out`, whatever the result.
  // The capture goes on after kIllegalState (the stream does not capture), kCaptureUnmatched (the
  // stream only joined) and kCaptureWrongThread.
  Status end(Stream& stream, std::shared_ptr<Graph>* out);

  // The stream is destroyed: its capture is invalidated, and ended where it began there.
  void forget(Stream& stream, std::shared_ptr<Graph>* out);

  // Before work on a stream: kOk where it may be recorded (the stream captures) or run.
  Status admit_work(Stream& stream);

  // Work on a capturing stream that no graph can hold.
  Status refuse_work(Stream& stream);

  // Records; the stream must capture, and admit_work have allowed it.
  void record(Stream& stream, NodeKind kind, NodeWork work);

  // Call it before a call that a capture would not see, or that waits (allocation, query,
  // synchronisation). The modes of the calling thread and of the captures decide.
  Status admit_unsafe_call();

  // For interfaces that refuse a call beside a capture whatever the thread's own mode is:
  // kCaptureUnsupported where a capture of this thread is not relaxed, or one of another thread is
  // global. That alone invalidates none.
  Status refuse_beside() const;

  // Before a question or a wait for a stream, an event, or all work of a device.
  Status admit_wait(const Stream& stream);
  Status admit_wait(const Event& event);
  Status admit_device_wait(int device);

  // What the stream's state is; kCaptureImplicit for a legacy default stream that is unusable.
  Status state(const Stream& stream, CaptureState* out) const;

  // On a capturing stream.
  static void record_event(Event& event, const Stream& stream);
  // The event was recorded in a capture, or the stream captures.
  Status wait_event(Stream& stream, const Event& event);
  Status update_dependencies(Stream& stream, const std::vector<GraphNodeHandle>& nodes,
                             DependencyUpdate update);

 private:
  static void invalidate(Capture& capture) { capture.invalidated = true; }
  static void join(Stream& stream, const std::shared_ptr<Capture>& capture);
  std::shared_ptr<Graph> detach(const std::shared_ptr<Capture>& capture);
  bool conflicts_with_legacy_stream(const Stream& stream, const Capture& capture) const;

  std::vector<std::shared_ptr<Capture>> active_;
  std::uint64_t next_id_ = 1;
};

}  // namespace uvmsim
