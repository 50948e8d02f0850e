// Sends the moves of a live plan for one device, on streams of its own: some for pages that leave,
// some for pages that come, so that the driver's work for one page runs beside the copy of another.
// All order is by events: nobody waits on the host, but for pages with a copy there, which leave by
// advice. A call that fails is counted, and has no other effect than that the driver's page faults
// move the page.
//
// Not thread-safe: LivePlanner's lock guards it, and is held across these calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <uvmalloc/device_runtime.hpp>
#include "hints/event_pool.hpp"
#include "hints/hint_counters.hpp"
#include "hints/live/kernel_events.hpp"
#include "hints/live/move_sink.hpp"

namespace uvm::live {

class MoveLanes {
 public:
  static constexpr std::size_t kLanesEachWay = 4;
  // Evictions whose pages a return waits for. Older ones are over, or it costs only time.
  static constexpr std::size_t kMostEvictions = 64;

  MoveLanes(const DeviceRuntime& runtime, EventPool& events, HintCounters& counters, int device)
      : runtime_(runtime), events_(events), counters_(counters), device_(device) {}
  ~MoveLanes();
  MoveLanes(const MoveLanes&) = delete;
  MoveLanes& operator=(const MoveLanes&) = delete;

  // In a forked child: streams and events are the parent's.
  void abandon() noexcept;

  // What follows is for the next work of the stream, which comes before that kernel.
  void begin(const DeviceStream& stream, KernelNumber next);
  // The next work is the kernel itself.
  void begin_kernel(const DeviceStream& stream, KernelNumber kernel);

  // The page leaves to the host, or to another device, after its last use.
  void leave(std::uintptr_t page, Place place, KernelNumber last_use);
  // A page that has left to another device goes on to the host. The stream at hand is not waited
  // for.
  void leave_peer(std::uintptr_t page);
  // As in MoveSink. Advice takes effect at once: drop() waits for the last use. Neighbours that
  // leave together share the calls.
  void keep_copy(std::uintptr_t page);
  void end_copy(std::uintptr_t page);
  void drop(std::uintptr_t page, KernelNumber last_use);
  void use_in_place(std::uintptr_t page, KernelNumber last_use);
  void end_in_place(std::uintptr_t page);
  // Pages that come before the next begin() wait for the work so far of the stream at hand.
  void hold_arrivals() { holds_arrivals_ = true; }
  void to_device(std::uintptr_t page, Arrival arrival);
  void wait_for(std::uintptr_t page);
  // As in MoveSink. False if no event follows the kernel on its stream yet.
  bool is_settled(std::uintptr_t page, KernelNumber last_use) const;
  // The calling thread waits for the work so far of the stream at hand, and for pages that leave.
  void wait_until_left();
  // Drops the contents of a page after the work so far of `user`, and before its later work. False:
  // the order cannot be had, or the driver refuses.
  // `freed` as in MoveSink.
  bool discard(std::uintptr_t page, const DeviceStream& user, KernelNumber freed);

 private:
  struct Lane {
    StreamHandle stream = nullptr;
    bool has_begun = false;  // it waits for the stream at hand
  };
  using Lanes = std::array<Lane, kLanesEachWay>;

  Lane& next_lane(Lanes& lanes, std::size_t* turn);
  StreamHandle next_leaving_lane(KernelNumber last_use);
  StreamHandle next_arriving_lane(Arrival arrival);
  void note_eviction(std::uintptr_t page, StreamHandle lane);
  bool follow_the_stream(Lane& lane);
  bool record_now();
  void drop_pages();
  void advise(std::uintptr_t page, std::size_t pages, Advice advice, Place place);
  void wait(StreamHandle stream, EventHandle event);
  EventHandle record(StreamHandle stream);
  // Calls `store(event)`, and releases the event if there is no memory to store it.
  template <class Store>
  void keep(EventHandle event, Store store);
  void release(EventHandle event);
  bool count(HintKind kind, const RuntimeStatus& status) noexcept;

  const DeviceRuntime& runtime_;
  EventPool& events_;
  HintCounters& counters_;
  const int device_;
  DeviceStream at_hand_;
  KernelNumber next_ = 0;
  EventHandle now_ = nullptr;  // on the stream at hand; one of kernel_events_
  KernelEvents kernel_events_;
  bool holds_arrivals_ = false;
  Lanes leaving_lanes_;
  Lanes arriving_lanes_;
  // For pages that move without a copy, so that they never wait behind copies.
  Lanes emptying_lanes_;
  Lanes filling_lanes_;
  std::size_t leaving_turn_ = 0;
  std::size_t arriving_turn_ = 0;
  std::size_t emptying_turn_ = 0;
  std::size_t filling_turn_ = 0;
  // Evictions for which no page has come yet.
  std::vector<EventHandle> new_evictions_;
  std::unordered_map<std::uintptr_t, EventHandle> evictions_;
  std::deque<std::uintptr_t> eviction_order_;
  std::unordered_map<std::uintptr_t, EventHandle> arrivals_;
  std::unordered_set<std::uintptr_t> copied_pages_;    // keep_copy() was called for them
  std::unordered_set<std::uintptr_t> in_place_pages_;  // use_in_place() was called for them
  std::vector<std::uintptr_t> dropped_;                // that still have their chunks
  KernelNumber dropped_use_ = 0;                       // the last one of all of these
};

}  // namespace uvm::live
