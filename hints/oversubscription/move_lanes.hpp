// Sends the moves of a live plan for one device, on its own streams: some for evictions, some for
// prefetches, so that the driver's work for one page overlaps the copy of another. Events order all
// moves, so the host does not wait, except for pages with a copy on the host, which are evicted by
// advice. A call that fails is counted; then the page migrates by page faults.
//
// If the device supports batches, moves are sent in rounds: one call for all evictions, and one
// call for each set of prefetched pages that are needed at about the same time. A prefetch waits
// for all evictions of its round, and for all pages of its call. So rounds are short, and a page
// for the next kernel never waits for a page of a later kernel. If the driver refuses a batch, its
// pages are sent one by one.
//
// Not thread-safe: LivePlanner's sending lock guards it, and is held across these calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "hints/event_pool.hpp"
#include "hints/hint_counters.hpp"
#include "hints/oversubscription/kernel_events.hpp"
#include "hints/oversubscription/move_list.hpp"
#include "hints/oversubscription/policy.hpp"

namespace uvm::live {

class MoveLanes {
 public:
  // Returns whether one range of a call may contain a page and the next page. The driver refuses a
  // range that reaches from one of its allocations into another.
  using MayJoin = std::function<bool(PageNumber page)>;

  // `batches` is DeviceCapabilities::batches.
  MoveLanes(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters, int device,
            bool batches, MayJoin may_join)
      : runtime_(runtime),
        events_(events),
        counters_(counters),
        device_(device),
        batches_(batches),
        may_join_(std::move(may_join)) {}
  ~MoveLanes();
  MoveLanes(const MoveLanes&) = delete;
  MoveLanes& operator=(const MoveLanes&) = delete;

  // Called in a forked child: streams and events belong to the parent.
  void abandon() noexcept;

  // The following moves are for the next work of the stream, which precedes kernel `next`.
  void begin(const DeviceStream& stream, KernelNumber next);
  // The following moves are for the kernel itself, which is the next work of the stream.
  void begin_kernel(const DeviceStream& stream, KernelNumber kernel);

  // Sends the moves. A discard follows the current work of the page's stream, and precedes its
  // later work. If this order is impossible, or the driver refuses the discard, the page moves to
  // the host. Advice takes effect at once, so to drop a page with a copy on the host, the calling
  // thread waits for the page's last use.
  void send(std::span<const PlannedMove> moves);

  // Returns whether the device has executed the kernel, and the page's last eviction. Queries the
  // driver. Returns false if no event follows the kernel on its stream yet.
  bool is_settled(PageNumber page, KernelNumber kernel) const;
  // Waits, on the calling thread, for the current work of the current stream and for all evictions.
  void wait_until_left();
  // Returns false after the driver has refused batches.
  bool sends_batches() const { return batches_; }

 private:
  struct Lane {
    StreamHandle stream = nullptr;
    bool has_begun = false;  // the lane's stream already waits for the current stream
  };
  using Lanes = std::array<Lane, policy::kLanesEachWay>;
  using Moves = std::span<const PlannedMove>;
  using Kind = PlannedMove::Kind;
  enum class Call : std::uint8_t { kPrefetch, kDiscard, kDiscardAndPrefetch };

  // An event recorded after moves. Several pages share it.
  struct SentEvent {
    explicit SentEvent(MoveLanes& owner) : lanes(owner) {}
    ~SentEvent() { lanes.release(handle); }
    SentEvent(const SentEvent&) = delete;
    SentEvent& operator=(const SentEvent&) = delete;

    MoveLanes& lanes;
    EventHandle handle = nullptr;
    DeviceStream waiter;  // the stream that already waits for the event
  };
  using SharedEvent = std::shared_ptr<SentEvent>;
  struct Eviction {
    SharedEvent event;
    std::size_t pages = 0;
  };

  Lane& next_lane(Lanes& lanes, std::size_t* turn);
  bool follow_the_stream(Lane& lane);
  bool record_now();

  // ---- rounds
  bool fits(const std::vector<PlannedMove>& round, const PlannedMove& move) const;
  void send_round(std::vector<PlannedMove>* round);
  bool may_come_together(const PlannedMove& first, const PlannedMove& other) const;
  void begin_in_place(Moves moves);
  void end_in_place(Moves moves);
  void keep_copies(Moves moves);
  void end_copies(Moves moves);
  void drop(Moves moves);
  void leave(Moves moves);
  void leave_peers(Moves moves);
  void discard(Moves moves);
  bool order_discard(Moves moves, StreamHandle lane);
  void bring(Moves moves);
  void take_chunks(std::size_t free_chunks);
  void wait_for(PageNumber page);
  void drop_pages();

  // ---- calls

  // Make the call and return the moves that the device has accepted.
  std::vector<PlannedMove> call(Call what, Moves moves, StreamHandle lane);
  std::vector<RangeMove> joined(Moves moves) const;
  RuntimeStatus call_range(Call what, const RangeMove& range, StreamHandle lane);
  RuntimeStatus call_batch(Call what, std::span<const RangeMove> ranges, StreamHandle lane);
  void note_refused_batch(const RuntimeStatus& status);
  Place place_after(const PlannedMove& move) const;
  template <class Advise>
  void each_run(std::vector<PageNumber> pages, Advise advise) const;
  void advise(PageNumber page, std::size_t pages, Advice advice, Place place);
  void advise_end_of_copy(PageNumber page, std::size_t pages);
  void advise_end_in_place(PageNumber page, std::size_t pages);
  bool wait_for_uses(Moves moves, Lane& lane);
  void wait_for_arrivals(Moves moves, StreamHandle lane);
  void note_evictions(Moves moves, const SharedEvent& left);
  SharedEvent take_eviction(PageNumber page);
  void wait(const DeviceStream& stream, const SharedEvent& event);
  void wait(StreamHandle lane, const SharedEvent& event) { wait({device_, lane}, event); }
  SharedEvent record(StreamHandle stream);
  void release(EventHandle event);
  void count(HintKind kind, std::size_t pages, const RuntimeStatus& status) noexcept;

  const DeviceRuntime& runtime_;
  EventPool& events_;
  HintCounters& counters_;
  const int device_;
  bool batches_;
  const MayJoin may_join_;
  bool is_abandoned_ = false;
  DeviceStream at_hand_;
  KernelNumber next_ = 0;
  EventHandle now_ = nullptr;  // on the current stream; one of kernel_events_
  KernelEvents kernel_events_;
  Lanes leaving_lanes_;
  Lanes arriving_lanes_;
  // Lanes for pages that move without a copy, so that these pages never wait for copies.
  Lanes emptying_lanes_;
  Lanes filling_lanes_;
  std::size_t leaving_turn_ = 0;
  std::size_t arriving_turn_ = 0;
  std::size_t emptying_turn_ = 0;
  std::size_t filling_turn_ = 0;
  std::deque<Eviction> new_evictions_;    // evictions whose chunks no page has taken yet
  std::vector<SharedEvent> chunks_left_;  // evictions whose chunks the pages of this round take
  std::unordered_map<PageNumber, SharedEvent> evictions_;
  std::deque<PageNumber> eviction_order_;
  std::unordered_map<PageNumber, SharedEvent> arrivals_;
  std::unordered_set<PageNumber> copied_pages_;    // pages that keep copies on the host
  std::unordered_set<PageNumber> in_place_pages_;  // pages that are used on the host
  std::vector<PageNumber> dropped_;                // dropped pages that still have their chunks
  KernelNumber dropped_use_ = 0;                   // the last use of all dropped_ pages
};

}  // namespace uvm::live
