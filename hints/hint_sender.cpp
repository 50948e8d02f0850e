#include <uvmalloc/hints/hint_sender.hpp>

#include <uvmalloc/runtime/log.hpp>

namespace uvm {
namespace {

constexpr RuntimeStatus kNoLane{RuntimeError::kOther, 0, "no stream", "create_stream"};

}  // namespace

HintSender::HintSender(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters)
    : runtime_(runtime),
      events_(events),
      counters_(counters),
      lanes_(static_cast<std::size_t>(runtime.device_count())) {}

HintSender::~HintSender() {
  for (std::size_t device = 0; device < lanes_.size(); ++device) {
    if (lanes_[device] != nullptr) {
      runtime_.destroy_stream(static_cast<int>(device), lanes_[device]);
    }
  }
}

StreamHandle HintSender::lane(int device) {
  auto index = static_cast<std::size_t>(device);
  {
    std::lock_guard lock(mutex_);
    if (lanes_.at(index) != nullptr) return lanes_[index];
  }
  StreamHandle made = nullptr;
  if (!runtime_.create_stream(device, &made).ok()) return nullptr;
  std::lock_guard lock(mutex_);
  if (lanes_[index] != nullptr) {
    runtime_.destroy_stream(device, made);  // another thread was first
  } else {
    lanes_[index] = made;
  }
  return lanes_[index];
}

bool HintSender::note(const Hint& hint, const RuntimeStatus& status) {
  HintCounters::Kind& kind = counters_.of(hint.kind);
  if (status.ok()) {
    kind.sent.fetch_add(1, std::memory_order_relaxed);
    kind.bytes.fetch_add(hint.size_bytes, std::memory_order_relaxed);
    return true;
  }
  kind.failed.fetch_add(1, std::memory_order_relaxed);
  log_once(
      LogLevel::kWarning, status.text(),
      fmt::format("a hint for {} MiB to {} failed and is left out: {} (said once; the program is "
                  "correct without it)",
                  hint.size_bytes >> 20, to_string(hint.place), status.text()));
  return false;
}

// Whether an event can be recorded on it, or waited for by it, now and here.
bool HintSender::may_wait(const DeviceStream& stream) const {
  if (!stream.exists() || !stream.can_be_named()) return false;
  bool is_capturing = false;
  return runtime_.is_capturing(stream.device, stream.handle, &is_capturing).ok() && !is_capturing;
}

// Later work of `waiting` starts after the work so far of `before`.
void HintSender::order(DeviceStream waiting, DeviceStream before) {
  RuntimeStatus status;
  EventHandle event = events_.record(before, &status);
  if (event == nullptr) return;
  runtime_.stream_wait_event(waiting.device, waiting.handle, event);
  // The wait has taken the event's present state; recording it again elsewhere does not change
  // that.
  events_.release(before.device, event);
}

std::vector<FailedHint> HintSender::send(const HintPlan& plan, int device, DeviceStream producer,
                                         DeviceStream consumer) {
  std::vector<FailedHint> failed;
  bool prefetched = false;
  bool is_first = true;
  StreamHandle lane_stream = nullptr;
  for (std::size_t place = 0; place < plan.size(); ++place) {
    const Hint& hint = plan[place];
    RuntimeStatus status = kNoLane;
    if (hint.kind == HintKind::kAdvise) {
      status = runtime_.advise(device, hint.address, hint.size_bytes, hint.advice, hint.place);
    } else {
      if (lane_stream == nullptr) lane_stream = lane(device);
      if (lane_stream != nullptr) {
        if (is_first && may_wait(producer)) order({device, lane_stream}, producer);
        is_first = false;
        status = runtime_.prefetch(device, hint.address, hint.size_bytes, hint.place, lane_stream);
        prefetched |= status.ok();
      }
    }
    if (!note(hint, status)) failed.push_back({place, status});
  }
  if (prefetched && may_wait(consumer)) order(consumer, {device, lane_stream});
  return failed;
}

RuntimeStatus HintSender::discard(int device, void* address, std::size_t size_bytes) {
  const Hint hint{HintKind::kDiscard, {}, Place::nowhere(), address, size_bytes};
  RuntimeStatus status = kNoLane;
  if (StreamHandle lane_stream = lane(device); lane_stream != nullptr) {
    status = runtime_.discard(device, address, size_bytes, lane_stream);
    if (!note(hint, status)) return status;
    return runtime_.synchronize_stream(device, lane_stream);
  }
  note(hint, status);
  return status;
}

}  // namespace uvm
