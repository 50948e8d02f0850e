// Virtual time: a clock for the host, and for each stream the moment until which it is busy. Work
// takes effect on memory at once, in the order it is issued; only its completion lies on the time
// line. Beside its streams a device has a lane for each way to and from the host, one for bytes
// that come from other devices, and one for the service of its faults; work waits for a lane that
// is busy. The default streams have the handles 0 and 1 (one per
// device, ordered with its blocking streams) and 2 (one per device and thread). Owns streams and
// events; guarded by the machine's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/engine/capture.hpp"
#include "sim/engine/cost_model.hpp"
#include "sim/engine/export.hpp"

namespace uvmsim {

// The program's name of an event; a stream's is an address too, or a small number for default
// streams.
using EventHandle = void*;

struct Stream {
  int device;
  int context = -1;    // ends with it; -1: a default stream, or one of the machine's own
  std::uint64_t id;    // unique in the process
  unsigned flags = 0;  // as given by the caller; the engine attaches no meaning
  int priority = 0;
  bool blocking = true;  // ordered with the device's default stream
  bool is_default = false;
  std::uint64_t busy_until_ns = 0;
  std::shared_ptr<Capture> capture = nullptr;  // that it takes part in, if any
  std::vector<GraphNode*> capture_tips = {};   // nodes that the next one recorded depends on
};

struct Event {
  int device;
  int context = -1;
  unsigned flags = 0;
  bool timing = true;
  bool recorded = false;
  std::uint64_t time_ns = 0;
  std::shared_ptr<Capture> capture = nullptr;  // in which it was last recorded, if in any
  std::vector<GraphNode*> capture_tips =
      {};  // nodes it then stood for; gone once that capture ends
};

class UVMSIM_EXPORT Timeline {
 public:
  Timeline(int device_count, std::uint64_t query_ns);

  std::uint64_t now_ns() const { return now_ns_; }
  void advance(std::uint64_t nanoseconds) { now_ns_ += nanoseconds; }

  StreamHandle create_stream(int device, unsigned flags, bool blocking, int priority);
  bool destroy_stream(StreamHandle handle);
  // What a context had. The default streams of a device are those of its primary context.
  std::vector<StreamHandle> streams_of(int context) const;
  std::vector<Stream*> per_thread_streams_of(int device);
  void destroy_events_of(int context);

  // `device` matters for default streams only. Null where the handle is none.
  Stream* find_stream(int device, StreamHandle handle);

  EventHandle create_event(int device, unsigned flags, bool timing);
  bool destroy_event(EventHandle handle);
  Event* find_event(EventHandle handle);

  // Puts work of that length on the stream, after all that the stream must wait for.
  void submit(Stream& stream, std::uint64_t duration_ns) {
    submit(stream, Phases{.kernel_ns = duration_ns});
  }
  // The same for work that needs lanes of the device, phase by phase.
  void submit(Stream& stream, const Phases& phases);

  // The calling thread does that work itself, and waits for the lanes that it needs.
  void run_on_host(int device, const Phases& phases);

  // The host works alone with the address space: it waits until no faults are serviced, and
  // meanwhile none are.
  void run_exclusively(std::uint64_t duration_ns);

  void record(Event& event, Stream& stream);
  void wait(Stream& stream, const Event& event);

  // When everything put on the stream so far, or on any stream of the device, is complete.
  std::uint64_t completion_ns(const Stream& stream) const;
  std::uint64_t device_completion_ns(int device) const;

  // When work put on the stream now would begin.
  std::uint64_t earliest_start_ns(const Stream& stream) const;

  // The host waits until then.
  void wait_until(std::uint64_t time_ns);

  // The host asks whether that moment has passed; where not, asking takes a little time.
  bool query(std::uint64_t time_ns);

 private:
  // Each is busy until then.
  struct Lanes {
    std::uint64_t service_ns = 0;
    std::uint64_t to_host_ns = 0;
    std::uint64_t to_device_ns = 0;
    std::uint64_t from_devices_ns = 0;
  };

  template <class Visit>
  void each_stream(int device, Visit visit) const;

  std::uint64_t now_ns_ = 0;
  const std::uint64_t query_ns_;
  std::uint64_t next_id_ = 1;
  std::vector<Lanes> lanes_;      // by device
  std::vector<Stream> defaults_;  // by device
  // By device: for the blocking streams that were destroyed and for the others, one that is busy as
  // long as any of them. What was put on them goes on.
  std::vector<std::array<Stream, 2>> destroyed_;
  std::map<std::pair<std::uint64_t, int>, Stream> per_thread_;  // by thread's number and device
  std::unordered_map<StreamHandle, std::unique_ptr<Stream>> streams_;
  std::unordered_map<EventHandle, std::unique_ptr<Event>> events_;
};

}  // namespace uvmsim
