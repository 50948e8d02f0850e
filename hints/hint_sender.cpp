#include "hints/hint_sender.hpp"

#include <algorithm>
#include <new>

#include "hints/policy.hpp"
#include "runtime/log.hpp"

namespace uvm {
namespace {

constexpr RuntimeStatus kNoLane{RuntimeError::kOther, 0, "no stream", "create_stream"};
constexpr RuntimeStatus kTooManyPrefetches{RuntimeError::kOther, 0, "too many wait", "prefetch"};

}  // namespace

HintSender::HintSender(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters,
                       bool prefetch_blocks)
    : runtime_(runtime),
      events_(events),
      counters_(counters),
      lanes_(static_cast<std::size_t>(runtime.device_count())) {
  if (!prefetch_blocks) return;
  prefetch_thread_ = std::make_unique<PrefetchThread>(
      runtime, [this](const PrefetchThread::Request& request, const RuntimeStatus& status) {
        note_late(request.hint, status);
      });
}

HintSender::~HintSender() {
  prefetch_thread_.reset();
  for (std::size_t device = 0; device < lanes_.size(); ++device) {
    for (const StreamHandle each : {lanes_[device].first, lanes_[device].second}) {
      if (each != nullptr) runtime_.destroy_stream(static_cast<int>(device), each);
    }
  }
}

void HintSender::abandon() noexcept {
  lanes_.clear();
  deferred_.abandon();
  (void)prefetch_thread_.release();  // leaked: its thread, not in the child, may hold its lock
}

StreamHandle HintSender::lane_of(int device, StreamHandle Lanes::*which) {
  auto index = static_cast<std::size_t>(device);
  {
    const RankedGuard lock(mutex_);
    if (lanes_.at(index).*which != nullptr) return lanes_[index].*which;
  }
  StreamHandle made = nullptr;
  if (!runtime_.create_stream(device, &made).ok()) return nullptr;
  StreamHandle first = nullptr;
  {
    const RankedGuard lock(mutex_);
    if (lanes_[index].*which == nullptr) lanes_[index].*which = made;
    first = lanes_[index].*which;
  }
  if (first != made) runtime_.destroy_stream(device, made);  // another thread was faster
  return first;
}

bool HintSender::note(const Hint& hint, const RuntimeStatus& status) noexcept {
  counters_.count(hint.kind, hint.size_bytes, status.ok());
  if (status.ok()) return true;
  try {
    log_once(LogLevel::kWarning, status.text(),
             fmt::format(
                 "a hint for {} MiB to {} failed: {} (reported once; without the hint the program "
                 "may be slower, but it stays correct)",
                 hint.size_bytes >> 20, to_string(hint.place), status.text()));
  } catch (const std::bad_alloc&) {
    // There is no memory for the line. The next hint that fails is logged.
  }
  return false;
}

// Counts the result of a deferred hint. Does not count a failure if the memory was freed meanwhile,
// or if its device has lost its context.
void HintSender::note_late(const Hint& hint, const RuntimeStatus& status) noexcept {
  const bool has_ended =
      status.error == RuntimeError::kInvalidValue || status.error == RuntimeError::kNotUsable;
  if (!has_ended) note(hint, status);
}

void HintSender::send_deferred() {
  deferred_.flush([this](const AdviceQueue::Entry& entry) {
    const Hint& hint = entry.hint;
    const RuntimeStatus status =
        runtime_.advise(entry.device, hint.address, hint.size_bytes, hint.advice, hint.place);
    if (status.error == RuntimeError::kCapture) return false;
    note_late(hint, status);
    return true;
  });
}

RuntimeStatus HintSender::advise(int device, const Hint& hint) {
  RuntimeStatus status{RuntimeError::kCapture, 0, "a capture is under way", "advise"};
  if (deferred_.is_empty()) {
    status = runtime_.advise(device, hint.address, hint.size_bytes, hint.advice, hint.place);
    if (status.error != RuntimeError::kCapture) {
      note(hint, status);
      return status;
    }
  }
  if (deferred_.push({hint, device})) return {};
  note(hint, status);
  return status;
}

RuntimeStatus HintSender::prefetch(int device, const Hint& hint, StreamHandle lane_stream) {
  if (prefetch_thread_ == nullptr) {
    if (hint.is_copied && hint.size_bytes >= policy::kLeastSplitBytes)
      return prefetch_in_pieces(device, hint, lane_stream);
    const RuntimeStatus status =
        runtime_.prefetch(device, hint.address, hint.size_bytes, hint.place, lane_stream);
    note(hint, status);
    return status;
  }
  if (prefetch_thread_->hand_over({hint, device, lane_stream})) return {};
  note(hint, kTooManyPrefetches);
  return kTooManyPrefetches;
}

// If there is no second lane, all pieces go through the first lane.
RuntimeStatus HintSender::prefetch_in_pieces(int device, const Hint& hint,
                                             StreamHandle lane_stream) {
  const DeviceStream first{device, lane_stream};
  const DeviceStream second{device, lane_of(device, &Lanes::second)};
  const bool has_second = second.handle != nullptr && events_.order(second, first);
  RuntimeStatus status;
  Hint piece = hint;
  std::size_t sent_bytes = 0;
  std::size_t next_bytes = policy::kFirstPieceBytes;
  for (bool takes_first = true; status.ok() && sent_bytes < hint.size_bytes;) {
    piece.address = static_cast<char*>(hint.address) + sent_bytes;
    piece.size_bytes = std::min(next_bytes, hint.size_bytes - sent_bytes);
    const StreamHandle taken = takes_first || !has_second ? first.handle : second.handle;
    status = runtime_.prefetch(device, piece.address, piece.size_bytes, piece.place, taken);
    note(piece, status);
    sent_bytes += piece.size_bytes;
    next_bytes = std::min(2 * next_bytes, policy::kMostPieceBytes);
    takes_first = !takes_first;
  }
  // Makes the first lane wait for the second, because callers wait only for the first lane.
  if (has_second && !events_.order(first, second))
    (void)runtime_.synchronize_stream(device, second.handle);
  return status;
}

HintStatuses HintSender::send(const HintPlan& plan, int device, DeviceStream producer,
                              DeviceStream consumer) {
  HintStatuses statuses;
  bool prefetched = false;
  StreamHandle lane_stream = nullptr;
  send_deferred();
  for (std::size_t place = 0; place < plan.size(); ++place) {
    const Hint& hint = plan[place];
    if (hint.kind == HintKind::kAdvise) {
      statuses[place] = advise(device, hint);
      continue;
    }
    if (lane_stream == nullptr) {
      lane_stream = lane(device);
      if (lane_stream != nullptr && events_.may_wait(producer)) {
        events_.order({device, lane_stream}, producer);
      }
    }
    if (lane_stream == nullptr) {
      note(hint, kNoLane);
      statuses[place] = kNoLane;
      continue;
    }
    statuses[place] = prefetch(device, hint, lane_stream);
    prefetched |= statuses[place].ok();
  }
  const bool has_begun = prefetched && prefetch_thread_ == nullptr;
  if (has_begun && events_.may_wait(consumer)) events_.order(consumer, {device, lane_stream});
  return statuses;
}

void HintSender::forget_device(int device) noexcept {
  finish_prefetches();
  const RankedGuard lock(mutex_);
  lanes_[static_cast<std::size_t>(device)] = {};
}

void HintSender::finish_prefetches() noexcept {
  if (prefetch_thread_ != nullptr) prefetch_thread_->drain();
}

RuntimeStatus HintSender::discard(int device, void* address, std::size_t size_bytes) {
  const Hint hint{HintKind::kDiscard, {}, Place::nowhere(), address, size_bytes};
  StreamHandle lane_stream = lane(device);
  finish_prefetches();  // queued prefetches may cover the same pages
  const RuntimeStatus status =
      lane_stream == nullptr ? kNoLane : runtime_.discard(device, address, size_bytes, lane_stream);
  return note(hint, status) ? runtime_.synchronize_stream(device, lane_stream) : status;
}

}  // namespace uvm
