#include "hints/live/move_lanes.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/log.hpp"
#include "storage/pages.hpp"

namespace uvm::live {

template <class Store>
void MoveLanes::keep(EventHandle event, Store store) {
  try {
    store(event);
  } catch (const std::bad_alloc&) {
    release(event);
    throw;
  }
}

MoveLanes::~MoveLanes() {
  while (!copied_pages_.empty()) end_copy(*copied_pages_.begin());
  while (!in_place_pages_.empty()) end_in_place(*in_place_pages_.begin());
  while (!kernel_events_.empty()) release(kernel_events_.take());
  for (const EventHandle event : new_evictions_) release(event);
  for (const auto& [page, event] : evictions_) release(event);
  for (const auto& [page, event] : arrivals_) release(event);
  for (const Lanes* lanes :
       {&leaving_lanes_, &arriving_lanes_, &emptying_lanes_, &filling_lanes_}) {
    for (const Lane& lane : *lanes) {
      if (lane.stream != nullptr) runtime_.destroy_stream(device_, lane.stream);
    }
  }
}

void MoveLanes::abandon() noexcept {
  now_ = nullptr;
  kernel_events_.clear();
  new_evictions_.clear();
  evictions_.clear();
  arrivals_.clear();
  leaving_lanes_ = {};
  arriving_lanes_ = {};
  emptying_lanes_ = {};
  filling_lanes_ = {};
  copied_pages_.clear();
  in_place_pages_.clear();
  dropped_.clear();
}

void MoveLanes::begin(const DeviceStream& stream, KernelNumber next) {
  at_hand_ = stream;
  next_ = next;
  now_ = nullptr;
  holds_arrivals_ = false;
  for (Lanes* lanes : {&leaving_lanes_, &arriving_lanes_, &emptying_lanes_, &filling_lanes_}) {
    for (Lane& lane : *lanes) lane.has_begun = false;
  }
}

void MoveLanes::begin_kernel(const DeviceStream& stream, KernelNumber kernel) {
  begin(stream, kernel);
  (void)record_now();
}

// Its stream is null if the runtime has none.
MoveLanes::Lane& MoveLanes::next_lane(Lanes& lanes, std::size_t* turn) {
  Lane& lane = lanes[(*turn)++ % kLanesEachWay];
  if (lane.stream == nullptr && !runtime_.create_stream(device_, &lane.stream).ok())
    lane.stream = nullptr;
  return lane;
}

StreamHandle MoveLanes::next_leaving_lane(KernelNumber last_use) {
  Lane& lane = next_lane(leaving_lanes_, &leaving_turn_);
  if (lane.stream == nullptr) return nullptr;
  if (const EventHandle used = kernel_events_.after(last_use)) {
    const RuntimeStatus status = runtime_.stream_wait_event(device_, lane.stream, used);
    return status.ok() ? lane.stream : nullptr;
  }
  return follow_the_stream(lane) ? lane.stream : nullptr;
}

StreamHandle MoveLanes::next_arriving_lane(Arrival arrival) {
  Lane& lane = arrival == Arrival::kCopied ? next_lane(arriving_lanes_, &arriving_turn_)
                                           : next_lane(filling_lanes_, &filling_turn_);
  if (!holds_arrivals_ || lane.stream == nullptr) return lane.stream;
  return follow_the_stream(lane) ? lane.stream : nullptr;
}

bool MoveLanes::follow_the_stream(Lane& lane) {
  if (lane.has_begun) return true;
  if (!record_now()) return false;
  lane.has_begun = runtime_.stream_wait_event(device_, lane.stream, now_).ok();
  return lane.has_begun;
}

bool MoveLanes::record_now() {
  RuntimeStatus status;
  if (now_ != nullptr) return true;
  const EventHandle event = events_.record(at_hand_, &status);
  if (event == nullptr) return false;
  keep(event, [this](EventHandle now) { release(kernel_events_.add(next_, at_hand_, now)); });
  now_ = event;
  return true;
}

// The host is the preferred place, so that its copy stays where one of two copies goes.
void MoveLanes::keep_copy(std::uintptr_t page) {
  copied_pages_.insert(page);
  advise(page, 1, Advice::kSetPreferredLocation, Place::host());
  advise(page, 1, Advice::kSetReadMostly, Place::host());
}

void MoveLanes::end_copy(std::uintptr_t page) {
  copied_pages_.erase(page);
  std::erase(dropped_, page);
  advise(page, 1, Advice::kSetPreferredLocation, Place::device(device_));
  advise(page, 1, Advice::kUnsetReadMostly, Place::host());
}

void MoveLanes::use_in_place(std::uintptr_t page, KernelNumber last_use) {
  in_place_pages_.insert(page);
  std::erase(dropped_, page);
  advise(page, 1, Advice::kSetPreferredLocation, Place::host());
  advise(page, 1, Advice::kSetAccessedBy, Place::device(device_));
  leave(page, Place::host(), last_use);
}

void MoveLanes::end_in_place(std::uintptr_t page) {
  in_place_pages_.erase(page);
  advise(page, 1, Advice::kUnsetAccessedBy, Place::device(device_));
  advise(page, 1, Advice::kSetPreferredLocation, Place::device(device_));
}

void MoveLanes::drop(std::uintptr_t page, KernelNumber last_use) {
  if (const auto arrival = arrivals_.extract(page)) release(arrival.mapped());
  dropped_.push_back(page);
  dropped_use_ = std::max(dropped_use_, last_use);
}

void MoveLanes::drop_pages() {
  if (dropped_.empty()) return;
  std::ranges::sort(dropped_);
  EventHandle used = kernel_events_.after(std::exchange(dropped_use_, 0));
  if (used == nullptr && record_now()) used = now_;
  if (used != nullptr && runtime_.synchronize_event(device_, used).ok()) {
    for (auto first = dropped_.begin(); first != dropped_.end();) {
      auto last = first + 1;
      while (last != dropped_.end() && *last == *(last - 1) + 1) ++last;
      const auto pages = static_cast<std::size_t>(last - first);
      advise(*first, pages, Advice::kUnsetReadMostly, Place::host());
      advise(*first, pages, Advice::kSetReadMostly, Place::host());
      first = last;
    }
  }
  dropped_.clear();
}

// The memory may have been given back since: then the advice has no subject any more.
void MoveLanes::advise(std::uintptr_t page, std::size_t pages, Advice advice, Place place) {
  const RuntimeStatus status =
      runtime_.advise(device_, start_of_page(page), pages * kPageBytes, advice, place);
  if (status.error != RuntimeError::kInvalidValue) count(HintKind::kAdvise, status);
}

void MoveLanes::leave(std::uintptr_t page, Place place, KernelNumber last_use) {
  const StreamHandle lane = next_leaving_lane(last_use);
  if (lane == nullptr) return;
  if (const auto arrival = arrivals_.extract(page)) wait(lane, arrival.mapped());
  const RuntimeStatus status =
      runtime_.prefetch(device_, start_of_page(page), kPageBytes, place, lane);
  if (!count(HintKind::kPrefetch, status)) return;
  const EventHandle left = record(lane);
  if (left == nullptr) return;
  // One event for the arrivals that take the chunk, one for the page's own return.
  keep(left, [this](EventHandle event) { new_evictions_.push_back(event); });
  if (!evictions_.contains(page)) note_eviction(page, lane);
}

void MoveLanes::leave_peer(std::uintptr_t page) {
  const StreamHandle lane = next_lane(leaving_lanes_, &leaving_turn_).stream;
  if (lane == nullptr) return;
  if (const auto left = evictions_.extract(page)) {
    wait(lane, left.mapped());
    std::erase(eviction_order_, page);
  }
  const RuntimeStatus status =
      runtime_.prefetch(device_, start_of_page(page), kPageBytes, Place::host(), lane);
  if (count(HintKind::kPrefetch, status)) note_eviction(page, lane);
}

void MoveLanes::note_eviction(std::uintptr_t page, StreamHandle lane) {
  const EventHandle own = record(lane);
  if (own == nullptr) return;
  keep(own, [&](EventHandle event) { evictions_.emplace(page, event); });
  eviction_order_.push_back(page);
  if (eviction_order_.size() <= kMostEvictions) return;
  if (const auto oldest = evictions_.extract(eviction_order_.front())) release(oldest.mapped());
  eviction_order_.pop_front();
}

bool MoveLanes::is_settled(std::uintptr_t page, KernelNumber last_use) const {
  const auto is_over = [this](EventHandle event) {
    return event != nullptr && runtime_.query_event(device_, event).ok();
  };
  const auto left = evictions_.find(page);
  if (left != evictions_.end() && !is_over(left->second)) return false;
  return std::ranges::find(dropped_, page) == dropped_.end() &&
         is_over(kernel_events_.after(last_use));
}

void MoveLanes::to_device(std::uintptr_t page, Arrival kind) {
  drop_pages();
  const StreamHandle lane = next_arriving_lane(kind);
  if (lane == nullptr) return;
  for (const EventHandle event : new_evictions_) wait(lane, event);
  new_evictions_.clear();
  if (const auto left = evictions_.extract(page)) {
    wait(lane, left.mapped());
    std::erase(eviction_order_, page);
  }
  if (kind == Arrival::kDropped)
    count(HintKind::kDiscard, runtime_.discard(device_, start_of_page(page), kPageBytes, lane));
  const RuntimeStatus status =
      runtime_.prefetch(device_, start_of_page(page), kPageBytes, Place::device(device_), lane);
  if (!count(HintKind::kPrefetch, status)) return;
  if (const auto before = arrivals_.extract(page)) release(before.mapped());
  if (const EventHandle arrival = record(lane))
    keep(arrival, [&](EventHandle event) { arrivals_.emplace(page, event); });
}

void MoveLanes::wait_for(std::uintptr_t page) {
  if (const auto arrival = arrivals_.extract(page)) wait(at_hand_.handle, arrival.mapped());
}

void MoveLanes::wait_until_left() {
  drop_pages();
  (void)runtime_.synchronize_stream(device_, at_hand_.handle);
  for (const Lane& lane : leaving_lanes_) {
    if (lane.stream != nullptr) (void)runtime_.synchronize_stream(device_, lane.stream);
  }
}

bool MoveLanes::discard(std::uintptr_t page, const DeviceStream& user, KernelNumber freed) {
  if (user.device != device_ || !events_.may_wait(user)) return false;
  const StreamHandle lane = next_lane(emptying_lanes_, &emptying_turn_).stream;
  if (lane == nullptr) return false;
  // All that the stream has got since before the free.
  const EventHandle used = freed == 0 ? nullptr : kernel_events_.after(freed, user);
  const bool is_ordered = used != nullptr ? runtime_.stream_wait_event(device_, lane, used).ok()
                                          : events_.order({device_, lane}, user);
  if (!is_ordered) return false;
  if (const auto arrival = arrivals_.extract(page)) wait(lane, arrival.mapped());
  const RuntimeStatus status = runtime_.discard(device_, start_of_page(page), kPageBytes, lane);
  if (!count(HintKind::kDiscard, status)) return false;
  if (const EventHandle left = record(lane))
    keep(left, [this](EventHandle event) { new_evictions_.push_back(event); });
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

bool MoveLanes::count(HintKind kind, const RuntimeStatus& status) noexcept {
  counters_.count(kind, kPageBytes, status.ok());
  if (status.ok()) return true;
  try {
    log_once(
        LogLevel::kWarning, status.text(),
        fmt::format("a page of 2 MiB could not be moved ahead of its use: {} (reported once; the "
                    "program is correct without it)",
                    status.text()));
  } catch (const std::bad_alloc&) {
    // The next one is logged.
  }
  return false;
}

}  // namespace uvm::live
