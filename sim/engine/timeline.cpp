#include "sim/engine/timeline.hpp"

#include <algorithm>

#include "sim/engine/thread_context.hpp"

namespace uvmsim {
namespace {

constexpr std::uintptr_t kPerThreadHandle = 2;

// Puts work on a lane at `start_ns`, or when the lane is free; returns its end.
std::uint64_t take_lane(std::uint64_t* busy_until_ns, std::uint64_t start_ns,
                        std::uint64_t duration_ns) {
  if (duration_ns == 0) return start_ns;
  *busy_until_ns = std::max(*busy_until_ns, start_ns) + duration_ns;
  return *busy_until_ns;
}

}  // namespace

Timeline::Timeline(int device_count, std::uint64_t query_ns)
    : query_ns_(query_ns), lanes_(static_cast<std::size_t>(device_count)) {
  for (int device = 0; device < device_count; ++device) {
    defaults_.push_back(Stream{.device = device, .id = next_id_++, .is_default = true});
    destroyed_.push_back({Stream{.device = device, .id = 0, .blocking = false},
                          Stream{.device = device, .id = 0, .blocking = true}});
  }
}

StreamHandle Timeline::create_stream(int device, unsigned flags, bool blocking, int priority) {
  auto stream = std::make_unique<Stream>(Stream{.device = device,
                                                .context = context_for(device),
                                                .id = next_id_++,
                                                .flags = flags,
                                                .priority = priority,
                                                .blocking = blocking});
  const StreamHandle handle = stream.get();
  streams_.emplace(handle, std::move(stream));
  return handle;
}

std::vector<StreamHandle> Timeline::streams_of(int context) const {
  std::vector<StreamHandle> found;
  for (const auto& [handle, stream] : streams_) {
    if (stream->context == context) found.push_back(handle);
  }
  return found;
}

std::vector<Stream*> Timeline::per_thread_streams_of(int device) {
  std::vector<Stream*> found;
  for (auto& [key, stream] : per_thread_) {
    if (key.second == device) found.push_back(&stream);
  }
  return found;
}

void Timeline::destroy_events_of(int context) {
  std::erase_if(events_, [&](const auto& entry) { return entry.second->context == context; });
}

bool Timeline::destroy_stream(StreamHandle handle) {
  const auto it = streams_.find(handle);
  if (it == streams_.end()) return false;
  const Stream& stream = *it->second;
  Stream& left = destroyed_[static_cast<std::size_t>(stream.device)][stream.blocking ? 1 : 0];
  left.busy_until_ns = std::max(left.busy_until_ns, stream.busy_until_ns);
  streams_.erase(it);
  return true;
}

Stream* Timeline::find_stream(int device, StreamHandle handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number > kPerThreadHandle) {
    const auto it = streams_.find(handle);
    return it == streams_.end() ? nullptr : it->second.get();
  }
  if (device < 0 || static_cast<std::size_t>(device) >= defaults_.size()) return nullptr;
  const bool is_own = number == 0 && ThreadContext::current().has_own_default_stream;
  if (number < kPerThreadHandle && !is_own) return &defaults_[static_cast<std::size_t>(device)];
  const auto [it, added] = per_thread_.try_emplace({ThreadContext::current().number(), device},
                                                   Stream{.device = device, .id = 0});
  if (added) it->second.id = next_id_++;
  return &it->second;
}

EventHandle Timeline::create_event(int device, unsigned flags, bool timing) {
  auto event = std::make_unique<Event>(Event{
      .device = device, .context = memory_context_for(device), .flags = flags, .timing = timing});
  const EventHandle handle = event.get();
  events_.emplace(handle, std::move(event));
  return handle;
}

bool Timeline::destroy_event(EventHandle handle) {
  return events_.erase(handle) != 0;
}

Event* Timeline::find_event(EventHandle handle) {
  const auto it = events_.find(handle);
  return it == events_.end() ? nullptr : it->second.get();
}

template <class Visit>
void Timeline::each_stream(int device, Visit visit) const {
  visit(defaults_[static_cast<std::size_t>(device)]);
  for (const Stream& stream : destroyed_[static_cast<std::size_t>(device)]) visit(stream);
  for (const auto& [key, stream] : per_thread_) {
    if (key.second == device) visit(stream);
  }
  for (const auto& [handle, stream] : streams_) {
    if (stream->device == device) visit(*stream);
  }
}

// The default stream and the device's blocking streams wait for each other.
std::uint64_t Timeline::earliest_start_ns(const Stream& stream) const {
  std::uint64_t start = std::max(now_ns_, stream.busy_until_ns);
  if (stream.is_default) {
    each_stream(stream.device, [&](const Stream& other) {
      if (other.blocking) start = std::max(start, other.busy_until_ns);
    });
  } else if (stream.blocking) {
    start = std::max(start, defaults_[static_cast<std::size_t>(stream.device)].busy_until_ns);
  }
  return start;
}

std::uint64_t Timeline::run(int device, const Phases& phases, std::uint64_t start_ns) {
  Lanes& lanes = lanes_[static_cast<std::size_t>(device)];
  std::uint64_t time_ns = take_lane(&lanes.service_ns, start_ns, phases.service_ns);
  time_ns = take_lane(&lanes.to_host_ns, time_ns + phases.driver_ns, phases.to_host_ns);
  time_ns = take_lane(&lanes.to_device_ns, time_ns, phases.to_device_ns);
  const int getter = phases.between_devices_to < 0 ? device : phases.between_devices_to;
  time_ns = take_lane(&lanes_[static_cast<std::size_t>(getter)].from_devices_ns, time_ns,
                      phases.between_devices_ns);
  return time_ns + phases.kernel_ns;
}

void Timeline::submit(Stream& stream, const Phases& phases) {
  stream.busy_until_ns = run(stream.device, phases, earliest_start_ns(stream));
}

void Timeline::submit_batch(Stream& stream, std::span<const Phases> parts) {
  std::array<std::uint64_t, kPartsAtOnce> ends_ns{};
  ends_ns.fill(earliest_start_ns(stream));
  for (const Phases& part : parts) {
    std::uint64_t& earliest_ns = *std::ranges::min_element(ends_ns);
    earliest_ns = run(stream.device, part, earliest_ns);
  }
  stream.busy_until_ns = std::ranges::max(ends_ns);
}

void Timeline::run_on_host(int device, const Phases& phases) {
  Stream host{.device = device, .id = 0, .blocking = false};
  submit(host, phases);
  wait_until(host.busy_until_ns);
}

void Timeline::run_exclusively(std::uint64_t duration_ns) {
  if (duration_ns == 0) return;
  for (const Lanes& lanes : lanes_) now_ns_ = std::max(now_ns_, lanes.service_ns);
  now_ns_ += duration_ns;
  for (Lanes& lanes : lanes_) lanes.service_ns = now_ns_;
}

void Timeline::record(Event& event, Stream& stream) {
  event.capture = nullptr;
  event.capture_tips.clear();
  event.recorded = true;
  event.time_ns = earliest_start_ns(stream);
}

void Timeline::wait(Stream& stream, const Event& event) {
  if (event.recorded) stream.busy_until_ns = std::max(stream.busy_until_ns, event.time_ns);
}

std::uint64_t Timeline::completion_ns(const Stream& stream) const {
  return stream.is_default ? earliest_start_ns(stream) : stream.busy_until_ns;
}

std::uint64_t Timeline::device_completion_ns(int device) const {
  std::uint64_t latest = 0;
  each_stream(device,
              [&](const Stream& stream) { latest = std::max(latest, stream.busy_until_ns); });
  return latest;
}

void Timeline::wait_until(std::uint64_t time_ns) {
  now_ns_ = std::max(now_ns_, time_ns);
}

bool Timeline::query(std::uint64_t time_ns) {
  if (now_ns_ >= time_ns) return true;
  now_ns_ += query_ns_;
  return false;
}

}  // namespace uvmsim
