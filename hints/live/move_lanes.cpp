#include <uvmalloc/hints/live/move_lanes.hpp>

#include <uvmalloc/runtime/log.hpp>
#include <uvmalloc/storage/pages.hpp>

namespace uvm::live {

MoveLanes::~MoveLanes() {
  release(now_);
  for (const EventHandle event : new_evictions_) release(event);
  for (const auto& [page, event] : evictions_) release(event);
  for (const auto& [page, event] : arrivals_) release(event);
  for (const Lanes* lanes : {&leaving_lanes_, &arriving_lanes_}) {
    for (const Lane& lane : *lanes) {
      if (lane.stream != nullptr) runtime_.destroy_stream(device_, lane.stream);
    }
  }
}

void MoveLanes::abandon() noexcept {
  now_ = nullptr;
  new_evictions_.clear();
  evictions_.clear();
  arrivals_.clear();
  leaving_lanes_ = {};
  arriving_lanes_ = {};
}

void MoveLanes::begin(const DeviceStream& stream) {
  at_hand_ = stream;
  release(now_);
  now_ = nullptr;
  holds_arrivals_ = false;
  for (Lanes* lanes : {&leaving_lanes_, &arriving_lanes_}) {
    for (Lane& lane : *lanes) lane.has_begun = false;
  }
}

StreamHandle MoveLanes::next_lane(Lanes& lanes, std::size_t* turn) {
  Lane& lane = lanes[(*turn)++ % kLanesEachWay];
  if (lane.stream == nullptr && !runtime_.create_stream(device_, &lane.stream).ok())
    lane.stream = nullptr;
  const bool follows = &lanes == &leaving_lanes_ || holds_arrivals_;
  if (follows && lane.stream != nullptr && !follow_the_stream(lane)) return nullptr;
  return lane.stream;
}

bool MoveLanes::follow_the_stream(Lane& lane) {
  if (lane.has_begun) return true;
  if (now_ == nullptr) {
    RuntimeStatus status;
    now_ = events_.record(at_hand_, &status);
    if (now_ == nullptr) return false;
  }
  lane.has_begun = runtime_.stream_wait_event(device_, lane.stream, now_).ok();
  return lane.has_begun;
}

void MoveLanes::to_host(std::uintptr_t page) {
  const StreamHandle lane = next_lane(leaving_lanes_, &leaving_turn_);
  if (lane == nullptr) return;
  if (const auto arrival = arrivals_.extract(page)) wait(lane, arrival.mapped());
  const RuntimeStatus status =
      runtime_.prefetch(device_, start_of_page(page), kPageBytes, Place::host(), lane);
  if (!count(HintKind::kPrefetch, status)) return;
  const EventHandle left = record(lane);
  if (left == nullptr) return;
  new_evictions_.push_back(left);
  if (evictions_.contains(page)) return;
  // One event for the arrivals that take the chunk, one for the page's own return.
  const EventHandle own = record(lane);
  if (own == nullptr) return;
  evictions_.emplace(page, own);
  eviction_order_.push_back(page);
  if (eviction_order_.size() <= kMostEvictions) return;
  if (const auto oldest = evictions_.extract(eviction_order_.front())) release(oldest.mapped());
  eviction_order_.pop_front();
}

void MoveLanes::to_device(std::uintptr_t page) {
  const StreamHandle lane = next_lane(arriving_lanes_, &arriving_turn_);
  if (lane == nullptr) return;
  for (const EventHandle event : new_evictions_) wait(lane, event);
  new_evictions_.clear();
  if (const auto left = evictions_.extract(page)) {
    wait(lane, left.mapped());
    std::erase(eviction_order_, page);
  }
  const RuntimeStatus status =
      runtime_.prefetch(device_, start_of_page(page), kPageBytes, Place::device(device_), lane);
  if (!count(HintKind::kPrefetch, status)) return;
  if (const auto before = arrivals_.extract(page)) release(before.mapped());
  if (const EventHandle arrival = record(lane)) arrivals_.emplace(page, arrival);
}

void MoveLanes::wait_for(std::uintptr_t page) {
  if (const auto arrival = arrivals_.extract(page)) wait(at_hand_.handle, arrival.mapped());
}

void MoveLanes::wait_until_left() {
  (void)runtime_.synchronize_stream(device_, at_hand_.handle);
  for (const Lane& lane : leaving_lanes_) {
    if (lane.stream != nullptr) (void)runtime_.synchronize_stream(device_, lane.stream);
  }
}

bool MoveLanes::discard(std::uintptr_t page, const DeviceStream& user) {
  if (user.device != device_ || !events_.may_wait(user)) return false;
  const StreamHandle lane = next_lane(leaving_lanes_, &leaving_turn_);
  if (lane == nullptr || !events_.order({device_, lane}, user)) return false;
  if (const auto arrival = arrivals_.extract(page)) wait(lane, arrival.mapped());
  const RuntimeStatus status = runtime_.discard(device_, start_of_page(page), kPageBytes, lane);
  if (!count(HintKind::kDiscard, status)) return false;
  if (const EventHandle left = record(lane)) new_evictions_.push_back(left);
  if (events_.order(user, {device_, lane})) return true;
  // Later work of the stream may write to the page only after the discard.
  return runtime_.synchronize_stream(device_, lane).ok();
}

void MoveLanes::wait(StreamHandle stream, EventHandle event) {
  (void)runtime_.stream_wait_event(device_, stream, event);
  release(event);
}

EventHandle MoveLanes::record(StreamHandle stream) {
  RuntimeStatus status;
  return events_.record({device_, stream}, &status);
}

void MoveLanes::release(EventHandle event) {
  if (event != nullptr) events_.release(device_, event);
}

bool MoveLanes::count(HintKind kind, const RuntimeStatus& status) {
  counters_.count(kind, kPageBytes, status.ok());
  if (status.ok()) return true;
  log_once(LogLevel::kWarning, status.text(),
           fmt::format("a page of 2 MiB could not be moved ahead of its use: {} (said once; the "
                       "program is correct without it)",
                       status.text()));
  return false;
}

}  // namespace uvm::live
