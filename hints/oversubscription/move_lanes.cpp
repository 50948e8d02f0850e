#include "hints/oversubscription/move_lanes.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "hints/oversubscription/policy.hpp"
#include "runtime/log.hpp"
#include "storage/pages.hpp"

namespace uvm::live {
namespace {

std::vector<PageNumber> pages_of(std::span<const PlannedMove> moves) {
  std::vector<PageNumber> pages;
  for (const PlannedMove& move : moves) pages.push_back(move.page);
  return pages;
}

bool is_copied(const PlannedMove& move) {
  return move.kind == PlannedMove::Kind::kBring && move.arrival == Arrival::kCopied;
}

// Calls `send` for runs of moves that may be sent together with the first one of the run.
template <class MayJoin, class Send>
void each_group(std::span<const PlannedMove> moves, MayJoin may_join, Send send) {
  while (!moves.empty()) {
    const auto end = std::ranges::find_if_not(
        moves, [&](const PlannedMove& move) { return may_join(moves.front(), move); });
    const auto count = static_cast<std::size_t>(end - moves.begin());
    send(moves.first(count));
    moves = moves.subspan(count);
  }
}

}  // namespace

MoveLanes::~MoveLanes() {
  for (const PageNumber page : copied_pages_) advise_end_of_copy(page, 1);
  for (const PageNumber page : in_place_pages_) advise_end_in_place(page, 1);
  while (!kernel_events_.empty()) release(kernel_events_.take());
  new_evictions_.clear();
  evictions_.clear();
  arrivals_.clear();
  for (const Lanes* lanes :
       {&leaving_lanes_, &arriving_lanes_, &emptying_lanes_, &filling_lanes_}) {
    for (const Lane& lane : *lanes) {
      if (lane.stream != nullptr) runtime_.destroy_stream(device_, lane.stream);
    }
  }
}

void MoveLanes::abandon() noexcept {
  is_abandoned_ = true;
  now_ = nullptr;
  kernel_events_.clear();
  new_evictions_.clear();
  chunks_left_.clear();
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
  for (Lanes* lanes : {&leaving_lanes_, &arriving_lanes_, &emptying_lanes_, &filling_lanes_}) {
    for (Lane& lane : *lanes) lane.has_begun = false;
  }
}

void MoveLanes::begin_kernel(const DeviceStream& stream, KernelNumber kernel) {
  begin(stream, kernel);
  (void)record_now();
}

// Returns the next lane in turn. Its stream is null if the runtime cannot make a stream.
MoveLanes::Lane& MoveLanes::next_lane(Lanes& lanes, std::size_t* turn) {
  Lane& lane = lanes[(*turn)++ % policy::kLanesEachWay];
  if (lane.stream == nullptr && !runtime_.create_stream(device_, &lane.stream).ok())
    lane.stream = nullptr;
  return lane;
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
  try {
    release(kernel_events_.add(next_, at_hand_, event));
  } catch (const std::bad_alloc&) {
    release(event);
    throw;
  }
  now_ = event;
  return true;
}

// ---- rounds

void MoveLanes::send(Moves moves) {
  std::vector<PlannedMove> round;
  for (const PlannedMove& move : moves) {
    if (move.kind == Kind::kWait) continue;
    if (!fits(round, move)) send_round(&round);
    round.push_back(move);
  }
  send_round(&round);
  // Waits come last, so that no eviction or prefetch of the round is sent after the arrivals for
  // which the stream waits.
  for (const PlannedMove& move : moves) {
    if (move.kind == Kind::kWait) wait_for(move.page);
  }
}

// Returns whether the move may join the round. A round is sent in the order of its kinds. For each
// page, this order must be the order of the plan.
bool MoveLanes::fits(const std::vector<PlannedMove>& round, const PlannedMove& move) const {
  if (round.empty()) return true;
  if (move.begins_group) return false;
  if (!batches_ || round.size() == DeviceRuntime::kMostBatchMoves) return false;
  if (std::ranges::any_of(round, [&](const PlannedMove& other) {
        return other.page == move.page && other.kind >= move.kind;
      }))
    return false;
  return !is_copied(move) ||
         std::ranges::count_if(round, is_copied) < static_cast<std::ptrdiff_t>(policy::kRoundPages);
}

void MoveLanes::send_round(std::vector<PlannedMove>* round) {
  std::ranges::stable_sort(*round, {}, &PlannedMove::kind);
  const auto all_of = [round](Kind first, Kind last) {
    const auto begin = std::ranges::lower_bound(*round, first, {}, &PlannedMove::kind);
    const auto end = std::ranges::upper_bound(*round, last, {}, &PlannedMove::kind);
    return Moves(begin, end);
  };
  end_copies(all_of(Kind::kEndCopy, Kind::kEndCopy));
  end_in_place(all_of(Kind::kEndInPlace, Kind::kEndInPlace));
  drop(all_of(Kind::kDrop, Kind::kDrop));
  begin_in_place(all_of(Kind::kUseInPlace, Kind::kUseInPlace));
  leave(all_of(Kind::kUseInPlace, Kind::kLeave));
  leave_peers(all_of(Kind::kLeavePeer, Kind::kLeavePeer));
  each_group(
      all_of(Kind::kDiscard, Kind::kDiscard),
      [](const PlannedMove& a, const PlannedMove& b) { return a.user == b.user; },
      [this](Moves moves) { discard(moves); });
  keep_copies(all_of(Kind::kKeepCopy, Kind::kKeepCopy));
  const auto first_bring = std::ranges::lower_bound(*round, Kind::kBring, {}, &PlannedMove::kind);
  std::stable_sort(first_bring, round->end(), [](const PlannedMove& a, const PlannedMove& b) {
    return std::pair(a.arrival, a.follows_stream) < std::pair(b.arrival, b.follows_stream);
  });
  each_group(
      Moves(first_bring, round->end()),
      [this](const PlannedMove& a, const PlannedMove& b) { return may_come_together(a, b); },
      [this](Moves moves) { bring(moves); });
  chunks_left_.clear();
  round->clear();
}

// Returns whether two pages may be prefetched by one call. The kernel of the first page waits for
// both. So a page that is needed later may join only if it is needed soon after: then the wait is
// short compared with the time until its use.
bool MoveLanes::may_come_together(const PlannedMove& first, const PlannedMove& other) const {
  if (first.arrival != other.arrival || first.follows_stream != other.follows_stream) return false;
  const KernelNumber soonest = std::max(std::min(first.kernel, other.kernel), next_);
  const KernelNumber latest = std::max({first.kernel, other.kernel, next_});
  return latest - soonest <= (soonest - next_) / 2;
}

// The host becomes the preferred place, so that if one of two copies is dropped, the copy on the
// host remains.
void MoveLanes::keep_copies(Moves moves) {
  each_run(pages_of(moves), [this](PageNumber page, std::size_t pages) {
    advise(page, pages, Advice::kSetPreferredLocation, Place::host());
    advise(page, pages, Advice::kSetReadMostly, Place::host());
  });
  for (const PlannedMove& move : moves) copied_pages_.insert(move.page);
}

void MoveLanes::end_copies(Moves moves) {
  for (const PlannedMove& move : moves) {
    copied_pages_.erase(move.page);
    std::erase(dropped_, move.page);
  }
  each_run(pages_of(moves), [this](auto page, auto pages) { advise_end_of_copy(page, pages); });
}

void MoveLanes::advise_end_of_copy(PageNumber page, std::size_t pages) {
  advise(page, pages, Advice::kSetPreferredLocation, Place::device(device_));
  advise(page, pages, Advice::kUnsetReadMostly, Place::host());
}

// Advises the pages for use in place; the evictions follow.
void MoveLanes::begin_in_place(Moves moves) {
  for (const PlannedMove& move : moves) {
    in_place_pages_.insert(move.page);
    std::erase(dropped_, move.page);
  }
  each_run(pages_of(moves), [this](PageNumber page, std::size_t pages) {
    advise(page, pages, Advice::kSetPreferredLocation, Place::host());
    advise(page, pages, Advice::kSetAccessedBy, Place::device(device_));
  });
}

void MoveLanes::end_in_place(Moves moves) {
  for (const PlannedMove& move : moves) in_place_pages_.erase(move.page);
  each_run(pages_of(moves), [this](auto page, auto pages) { advise_end_in_place(page, pages); });
}

void MoveLanes::advise_end_in_place(PageNumber page, std::size_t pages) {
  advise(page, pages, Advice::kUnsetAccessedBy, Place::device(device_));
  advise(page, pages, Advice::kSetPreferredLocation, Place::device(device_));
}

void MoveLanes::drop(Moves moves) {
  for (const PlannedMove& move : moves) {
    arrivals_.erase(move.page);
    dropped_.push_back(move.page);
    dropped_use_ = std::max(dropped_use_, move.kernel);
  }
}

void MoveLanes::drop_pages() {
  if (dropped_.empty()) return;
  EventHandle used = kernel_events_.after(std::exchange(dropped_use_, 0));
  if (used == nullptr && record_now()) used = now_;
  if (used != nullptr && runtime_.synchronize_event(device_, used).ok()) {
    each_run(dropped_, [this](PageNumber page, std::size_t pages) {
      advise(page, pages, Advice::kUnsetReadMostly, Place::host());
      advise(page, pages, Advice::kSetReadMostly, Place::host());
    });
  }
  dropped_.clear();
}

void MoveLanes::leave(Moves moves) {
  if (moves.empty()) return;
  Lane& lane = next_lane(leaving_lanes_, &leaving_turn_);
  if (lane.stream == nullptr || !wait_for_uses(moves, lane)) return;
  wait_for_arrivals(moves, lane.stream);
  const std::vector<PlannedMove> left = call(Call::kPrefetch, moves, lane.stream);
  if (left.empty()) return;
  const SharedEvent event = record(lane.stream);
  if (event == nullptr) return;
  new_evictions_.push_back({event, left.size()});
  note_evictions(left, event);
}

// These evictions wait for no other work.
void MoveLanes::leave_peers(Moves moves) {
  if (moves.empty()) return;
  const StreamHandle lane = next_lane(leaving_lanes_, &leaving_turn_).stream;
  if (lane == nullptr) return;
  for (const PlannedMove& move : moves) {
    if (const SharedEvent left = take_eviction(move.page)) wait(lane, left);
  }
  const std::vector<PlannedMove> left = call(Call::kPrefetch, moves, lane);
  if (left.empty()) return;
  if (const SharedEvent event = record(lane)) note_evictions(left, event);
}

// All pages are free memory of one stream.
void MoveLanes::discard(Moves moves) {
  const DeviceStream user = moves.front().user;
  const StreamHandle lane = next_lane(emptying_lanes_, &emptying_turn_).stream;
  std::vector<PlannedMove> left;
  if (lane != nullptr && order_discard(moves, lane)) {
    wait_for_arrivals(moves, lane);
    left = call(Call::kDiscard, moves, lane);
  }
  if (!left.empty()) {
    if (const SharedEvent event = record(lane)) new_evictions_.push_back({event, left.size()});
    // Later work of the stream may write to the page only after the discard.
    if (!events_.order(user, {device_, lane})) (void)runtime_.synchronize_stream(device_, lane);
  }
  std::vector<PlannedMove> refused;
  for (const PlannedMove& move : moves) {
    if (std::ranges::find(left, move.page, &PlannedMove::page) != left.end()) continue;
    refused.push_back({.kind = Kind::kLeave, .page = move.page, .kernel = move.kernel});
  }
  leave(refused);
}

// Makes the lane wait for all work that the stream has got, from before the pages became free until
// now.
bool MoveLanes::order_discard(Moves moves, StreamHandle lane) {
  const DeviceStream& user = moves.front().user;
  if (user.device != device_ || !events_.may_wait(user)) return false;
  const KernelEvents::Recorded* used = nullptr;
  for (const PlannedMove& move : moves) {
    const auto* own = move.kernel == 0 ? nullptr : kernel_events_.first_after(move.kernel, user);
    if (own == nullptr) return events_.order({device_, lane}, user);
    if (used == nullptr || own->before > used->before) used = own;
  }
  return runtime_.stream_wait_event(device_, lane, used->event).ok();
}

void MoveLanes::bring(Moves moves) {
  drop_pages();
  const PlannedMove& first = moves.front();
  Lane& lane = first.arrival == Arrival::kCopied ? next_lane(arriving_lanes_, &arriving_turn_)
                                                 : next_lane(filling_lanes_, &filling_turn_);
  if (lane.stream == nullptr || (first.follows_stream && !follow_the_stream(lane))) return;
  take_chunks(std::ranges::min(moves, {}, &PlannedMove::free_chunks).free_chunks);
  for (const SharedEvent& left : chunks_left_) wait(lane.stream, left);
  for (const PlannedMove& move : moves) {
    if (const SharedEvent left = take_eviction(move.page)) wait(lane.stream, left);
  }
  const Call what =
      first.arrival == Arrival::kDropped ? Call::kDiscardAndPrefetch : Call::kPrefetch;
  const std::vector<PlannedMove> brought = call(what, moves, lane.stream);
  if (brought.empty()) return;
  const SharedEvent event = record(lane.stream);
  for (const PlannedMove& move : brought) {
    arrivals_.erase(move.page);
    if (event != nullptr) arrivals_.emplace(move.page, event);
  }
}

// The prefetches of this round follow all evictions except the last ones, which free `free_chunks`
// chunks.
void MoveLanes::take_chunks(std::size_t free_chunks) {
  std::size_t pages = 0;
  for (const Eviction& each : new_evictions_) pages += each.pages;
  while (pages > free_chunks) {
    pages -= new_evictions_.front().pages;
    chunks_left_.push_back(std::move(new_evictions_.front().event));
    new_evictions_.pop_front();
  }
}

void MoveLanes::wait_for(PageNumber page) {
  if (const auto arrival = arrivals_.extract(page)) wait(at_hand_, arrival.mapped());
}

void MoveLanes::wait_until_left() {
  drop_pages();
  (void)runtime_.synchronize_stream(device_, at_hand_.handle);
  for (const Lane& lane : leaving_lanes_) {
    if (lane.stream != nullptr) (void)runtime_.synchronize_stream(device_, lane.stream);
  }
}

bool MoveLanes::is_settled(PageNumber page, KernelNumber kernel) const {
  const auto is_over = [this](EventHandle event) {
    return event != nullptr && runtime_.query_event(device_, event).ok();
  };
  const auto left = evictions_.find(page);
  if (left != evictions_.end() && !is_over(left->second->handle)) return false;
  return std::ranges::find(dropped_, page) == dropped_.end() &&
         is_over(kernel_events_.after(kernel));
}

// ---- calls

Place MoveLanes::place_after(const PlannedMove& move) const {
  if (move.kind == Kind::kDiscard) return Place::nowhere();
  return move.kind == Kind::kBring ? Place::device(device_) : move.place;
}

// Joins adjacent pages with the same destination into one range.
std::vector<RangeMove> MoveLanes::joined(Moves moves) const {
  std::vector<const PlannedMove*> sorted;
  for (const PlannedMove& move : moves) sorted.push_back(&move);
  std::ranges::sort(sorted, {}, &PlannedMove::page);
  std::vector<RangeMove> ranges;
  PageNumber last{};
  for (const PlannedMove* move : sorted) {
    const Place place = place_after(*move);
    if (!ranges.empty() && move->page == last + 1 && ranges.back().destination == place &&
        may_join_(last)) {
      ranges.back().size_bytes += kPageBytes;
    } else {
      ranges.push_back({start_of_page(move->page), kPageBytes, place});
    }
    last = move->page;
  }
  return ranges;
}

std::vector<PlannedMove> MoveLanes::call(Call what, Moves moves, StreamHandle lane) {
  if (batches_ && (moves.size() > 1 || what == Call::kDiscardAndPrefetch)) {
    const RuntimeStatus status = call_batch(what, joined(moves), lane);
    if (status.ok()) {
      if (what != Call::kPrefetch) count(HintKind::kDiscard, moves.size(), status);
      if (what != Call::kDiscard) count(HintKind::kPrefetch, moves.size(), status);
      return {moves.begin(), moves.end()};
    }
    note_refused_batch(status);
  }
  std::vector<PlannedMove> accepted;
  for (const PlannedMove& move : moves) {
    const RuntimeStatus status =
        call_range(what, {start_of_page(move.page), kPageBytes, place_after(move)}, lane);
    count(what == Call::kDiscard ? HintKind::kDiscard : HintKind::kPrefetch, 1, status);
    if (status.ok()) accepted.push_back(move);
  }
  return accepted;
}

// If the discard before a prefetch is refused, the prefetch only costs an unnecessary copy.
RuntimeStatus MoveLanes::call_range(Call what, const RangeMove& range, StreamHandle lane) {
  if (what != Call::kPrefetch) {
    const RuntimeStatus status = runtime_.discard(device_, range.address, range.size_bytes, lane);
    if (what == Call::kDiscard) return status;
    count(HintKind::kDiscard, range.size_bytes / kPageBytes, status);
  }
  return runtime_.prefetch(device_, range.address, range.size_bytes, range.destination, lane);
}

RuntimeStatus MoveLanes::call_batch(Call what, std::span<const RangeMove> ranges,
                                    StreamHandle lane) {
  switch (what) {
    case Call::kPrefetch:
      return runtime_.prefetch_batch(device_, ranges, lane);
    case Call::kDiscard:
      return runtime_.discard_batch(device_, ranges, lane);
    case Call::kDiscardAndPrefetch:
      return runtime_.discard_and_prefetch_batch(device_, ranges, lane);
  }
  return {};
}

// The caller sends the pages again, one by one. If the driver does not support batches, no more
// batches are sent.
void MoveLanes::note_refused_batch(const RuntimeStatus& status) {
  const bool is_for_good =
      status.error == RuntimeError::kNotSupported || status.error == RuntimeError::kNoDevice;
  if (!is_for_good) return;
  batches_ = false;
  log_once(LogLevel::kInfo, "batches",
           fmt::format("the driver refuses to move several pages by one call: {}; pages are moved "
                       "one by one",
                       status.text()));
}

// Calls `advise` for each run of adjacent pages.
template <class Advise>
void MoveLanes::each_run(std::vector<PageNumber> pages, Advise advise) const {
  std::ranges::sort(pages);
  for (auto first = pages.begin(); first != pages.end();) {
    auto last = first + 1;
    while (last != pages.end() && *last == *(last - 1) + 1 && may_join_(*(last - 1))) ++last;
    advise(*first, static_cast<std::size_t>(last - first));
    first = last;
  }
}

// The memory may have been given back to the driver since the decision. Then the advice is not
// needed any more.
void MoveLanes::advise(PageNumber page, std::size_t pages, Advice advice, Place place) {
  const RuntimeStatus status =
      runtime_.advise(device_, start_of_page(page), pages * kPageBytes, advice, place);
  if (status.error != RuntimeError::kInvalidValue) count(HintKind::kAdvise, 1, status);
}

// The lane waits once for each stream that has used the pages.
bool MoveLanes::wait_for_uses(Moves moves, Lane& lane) {
  std::vector<const KernelEvents::Recorded*> latest;
  bool follows = false;
  for (const PlannedMove& move : moves) {
    const KernelEvents::Recorded* own = kernel_events_.first_after(move.kernel);
    if (own == nullptr) {
      follows = true;
      continue;
    }
    const auto same =
        std::ranges::find(latest, own->stream, [](const auto* known) { return known->stream; });
    if (same == latest.end()) {
      latest.push_back(own);
    } else if (own->before > (*same)->before) {
      *same = own;
    }
  }
  for (const KernelEvents::Recorded* used : latest) {
    if (!runtime_.stream_wait_event(device_, lane.stream, used->event).ok()) return false;
  }
  return !follows || follow_the_stream(lane);
}

void MoveLanes::wait_for_arrivals(Moves moves, StreamHandle lane) {
  for (const PlannedMove& move : moves) {
    if (const auto arrival = arrivals_.extract(move.page)) wait(lane, arrival.mapped());
  }
}

// Keeps the event, because a later prefetch of these pages waits for it.
void MoveLanes::note_evictions(Moves moves, const SharedEvent& left) {
  for (const PlannedMove& move : moves) {
    if (!evictions_.emplace(move.page, left).second) continue;
    eviction_order_.push_back(move.page);
    if (eviction_order_.size() <= policy::kMostEvictions) continue;
    evictions_.erase(eviction_order_.front());
    eviction_order_.pop_front();
  }
}

MoveLanes::SharedEvent MoveLanes::take_eviction(PageNumber page) {
  const auto left = evictions_.extract(page);
  if (!left) return nullptr;
  std::erase(eviction_order_, page);
  return left.mapped();
}

void MoveLanes::wait(const DeviceStream& stream, const SharedEvent& event) {
  if (event->waiter == stream) return;
  (void)runtime_.stream_wait_event(device_, stream.handle, event->handle);
  event->waiter = stream;
}

MoveLanes::SharedEvent MoveLanes::record(StreamHandle stream) {
  RuntimeStatus status;
  auto sent = std::make_shared<SentEvent>(*this);
  sent->handle = events_.record({device_, stream}, &status);
  return sent->handle == nullptr ? nullptr : sent;
}

void MoveLanes::release(EventHandle event) {
  if (event != nullptr && !is_abandoned_) events_.release(device_, event);
}

void MoveLanes::count(HintKind kind, std::size_t pages, const RuntimeStatus& status) noexcept {
  for (std::size_t i = 0; i < pages; ++i) counters_.count(kind, kPageBytes, status.ok());
  if (status.ok()) return;
  try {
    log_once(
        LogLevel::kWarning, status.text(),
        fmt::format("a page of 2 MiB could not be moved ahead of its use: {} (reported once; the "
                    "program is correct without it)",
                    status.text()));
  } catch (const std::bad_alloc&) {
    // There is no memory for the line. The next failure is logged.
  }
}

}  // namespace uvm::live
