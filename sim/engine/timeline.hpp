// Virtual time: a clock for the host, and for each stream the time until which the stream is busy.
// Work takes effect on memory at once, in issue order; only the completion of work is in virtual
// time. A device also has lanes: one for each direction to and from the host, one for bytes from
// other devices, and one for fault service. Work waits for a busy lane. The default streams have
// the handles 0 and 1 (one per device, ordered with its blocking streams) and 2 (one per device and
// thread). Owns streams and events; guarded by the machine's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/engine/capture.hpp"
#include "sim/engine/cost_model.hpp"
#include "sim/engine/export.hpp"

namespace uvmsim {

// The program's handle of an event. A stream's handle is an address too, or a small number.
using EventHandle = void*;

struct Stream {
  int device;
  int context = -1;    // destroyed with this context; -1: a default or internal stream
  std::uint64_t id;    // unique in the process
  unsigned flags = 0;  // as given by the caller; the engine does not interpret them
  int priority = 0;
  bool blocking = true;  // ordered with the device's default stream
  bool is_default = false;
  std::uint64_t busy_until_ns = 0;
  std::shared_ptr<Capture> capture = nullptr;  // the capture in progress on this stream, if any
  std::vector<GraphNode*> capture_tips = {};   // dependencies of the next recorded node
};

struct Event {
  int device;
  int context = -1;
  unsigned flags = 0;
  bool timing = true;
  bool recorded = false;
  std::uint64_t time_ns = 0;
  std::shared_ptr<Capture> capture = nullptr;  // in which the event was last recorded, if any
  // Until that capture ends: the nodes that a stream waiting for this event depends on.
  std::vector<GraphNode*> capture_tips = {};
};

class UVMSIM_EXPORT Timeline {
 public:
  Timeline(int device_count, std::uint64_t query_ns);

  std::uint64_t now_ns() const { return now_ns_; }
  void advance(std::uint64_t nanoseconds) { now_ns_ += nanoseconds; }

  StreamHandle create_stream(int device, unsigned flags, bool blocking, int priority);
  bool destroy_stream(StreamHandle handle);
  // Return the streams or events of a context. Default streams belong to the primary context.
  std::vector<StreamHandle> streams_of(int context) const;
  std::vector<Stream*> per_thread_streams_of(int device);
  void destroy_events_of(int context);

  // Returns null if the handle is invalid. `device` matters only for default streams.
  Stream* find_stream(int device, StreamHandle handle);

  EventHandle create_event(int device, unsigned flags, bool timing);
  bool destroy_event(EventHandle handle);
  Event* find_event(EventHandle handle);

  // Puts work of this duration on the stream, after everything that the stream waits for.
  void submit(Stream& stream, std::uint64_t duration_ns) {
    submit(stream, Phases{.kernel_ns = duration_ns});
  }
  // Puts work on the stream that occupies lanes of the device, phase by phase.
  void submit(Stream& stream, const Phases& phases);
  // Puts the parts of a batched call on the stream: kPartsAtOnce parts run as if each were on a
  // separate stream, and the work ends with the last part. The number is assumed, because drivers
  // do not document it.
  static constexpr std::size_t kPartsAtOnce = 4;
  void submit_batch(Stream& stream, std::span<const Phases> parts);

  // Runs work of the calling thread. The thread waits for free lanes, and then for the end of the
  // work.
  void run_on_host(int device, const Phases& phases);

  // Runs work that locks the address space: the work waits until no fault is being serviced, and no
  // fault is serviced during the work.
  void run_exclusively(std::uint64_t duration_ns);

  void record(Event& event, Stream& stream);
  void wait(Stream& stream, const Event& event);

  // Returns the completion time of all work that was put on the stream, or on all streams of the
  // device.
  std::uint64_t completion_ns(const Stream& stream) const;
  std::uint64_t device_completion_ns(int device) const;

  // Returns the time at which work that is put on the stream now would start.
  std::uint64_t earliest_start_ns(const Stream& stream) const;

  // Moves the host's clock forward to `time_ns`. Does nothing if `time_ns` has passed.
  void wait_until(std::uint64_t time_ns);

  // Returns whether `time_ns` has passed. If it has not, the query itself takes `query_ns_`.
  bool query(std::uint64_t time_ns);

 private:
  // The time until which each lane is busy.
  struct Lanes {
    std::uint64_t service_ns = 0;
    std::uint64_t to_host_ns = 0;
    std::uint64_t to_device_ns = 0;
    std::uint64_t from_devices_ns = 0;
  };

  // Returns the end of work that begins at `start_ns`.
  std::uint64_t run(int device, const Phases& phases, std::uint64_t start_ns);

  template <class Visit>
  void each_stream(int device, Visit visit) const;

  std::uint64_t now_ns_ = 0;
  const std::uint64_t query_ns_;
  std::uint64_t next_id_ = 1;
  std::vector<Lanes> lanes_;      // by device
  std::vector<Stream> defaults_;  // by device
  // For each device, two streams that stand for all destroyed ones: [0] for non-blocking streams,
  // [1] for blocking streams. Each stays busy until the work of its destroyed streams ends.
  std::vector<std::array<Stream, 2>> destroyed_;
  std::map<std::pair<std::uint64_t, int>, Stream> per_thread_;  // by thread's number, device
  std::unordered_map<StreamHandle, std::unique_ptr<Stream>> streams_;
  std::unordered_map<EventHandle, std::unique_ptr<Event>> events_;
};

}  // namespace uvmsim
