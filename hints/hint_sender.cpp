#include <uvmalloc/hints/hint_sender.hpp>

#include <new>

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
    const RankedGuard lock(mutex_);
    if (lanes_.at(index) != nullptr) return lanes_[index];
  }
  StreamHandle made = nullptr;
  if (!runtime_.create_stream(device, &made).ok()) return nullptr;
  StreamHandle first = nullptr;
  {
    const RankedGuard lock(mutex_);
    if (lanes_[index] == nullptr) lanes_[index] = made;
    first = lanes_[index];
  }
  if (first != made) runtime_.destroy_stream(device, made);  // another thread was first
  return first;
}

bool HintSender::note(const Hint& hint, const RuntimeStatus& status) noexcept {
  HintCounters::Kind& kind = counters_.of(hint.kind);
  if (status.ok()) {
    kind.sent.fetch_add(1, std::memory_order_relaxed);
    kind.bytes.fetch_add(hint.size_bytes, std::memory_order_relaxed);
    return true;
  }
  kind.failed.fetch_add(1, std::memory_order_relaxed);
  try {
    log_once(
        LogLevel::kWarning, status.text(),
        fmt::format("a hint for {} MiB to {} failed and is left out: {} (said once; the program is "
                    "correct without it)",
                    hint.size_bytes >> 20, to_string(hint.place), status.text()));
  } catch (const std::bad_alloc&) {
    // The next hint that fails is logged.
  }
  return false;
}

HintStatuses HintSender::send(const HintPlan& plan, int device, DeviceStream producer,
                              DeviceStream consumer) {
  HintStatuses statuses;
  bool prefetched = false;
  StreamHandle lane_stream = nullptr;
  for (std::size_t place = 0; place < plan.size(); ++place) {
    const Hint& hint = plan[place];
    RuntimeStatus status = kNoLane;
    if (hint.kind == HintKind::kAdvise) {
      status = runtime_.advise(device, hint.address, hint.size_bytes, hint.advice, hint.place);
    } else {
      if (lane_stream == nullptr) {
        lane_stream = lane(device);
        if (lane_stream != nullptr && events_.may_wait(producer)) {
          events_.order({device, lane_stream}, producer);
        }
      }
      if (lane_stream != nullptr) {
        status = runtime_.prefetch(device, hint.address, hint.size_bytes, hint.place, lane_stream);
        prefetched |= status.ok();
      }
    }
    note(hint, status);
    statuses[place] = status;
  }
  if (prefetched && events_.may_wait(consumer)) events_.order(consumer, {device, lane_stream});
  return statuses;
}

RuntimeStatus HintSender::discard(int device, void* address, std::size_t size_bytes) {
  const Hint hint{HintKind::kDiscard, {}, Place::nowhere(), address, size_bytes};
  StreamHandle lane_stream = lane(device);
  const RuntimeStatus status =
      lane_stream == nullptr ? kNoLane : runtime_.discard(device, address, size_bytes, lane_stream);
  return note(hint, status) ? runtime_.synchronize_stream(device, lane_stream) : status;
}

}  // namespace uvm
