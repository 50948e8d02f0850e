// Whether a thread's next event may have the time of its last one, so that the clock need not be
// read. It may where the thread has long recorded an event every few hundred processor cycles, at
// most kMostSkipped in a row, and not once the trace's ticker has ticked: times are early by a
// microsecond or so in a loop of nothing but allocations and frees, by less than a tick in the last
// events of such a loop, and exact elsewhere. One for each thread, without a lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include <uvmalloc/allocator/trace/trace_event.hpp>
#include <uvmalloc/allocator/trace/trace_ticker.hpp>

namespace uvm {

class TracePace {
 public:
  static constexpr std::uint64_t kQuick = 256;  // ticks or nanoseconds from one event to the next
  static constexpr std::uint32_t kQuickEvents = 64;
  static constexpr std::uint32_t kMostSkipped = 31;

  // Asked before an event; true counts it as skipped.
  bool skips(const TraceTicker& ticker) { return left_ != 0 && skips(ticker.tick()); }
  bool skips(std::uint64_t tick) {
    if (left_ == 0 || tick != tick_) return false;
    --left_;
    return true;
  }

  // For an event whose time was read.
  void read(TraceTime at, std::uint64_t tick) {
    const std::uint32_t events = 1 + given_ - left_;
    quick_ = at - last_ <= kQuick * events ? std::min(quick_ + events, kQuickEvents) : 0;
    given_ = left_ = quick_ == kQuickEvents ? kMostSkipped : 0;
    last_ = at;
    tick_ = tick;
  }

 private:
  TraceTime last_ = 0;
  std::uint64_t tick_ = 0;
  std::uint32_t quick_ = 0;  // events that came quickly, one after the other
  std::uint32_t given_ = 0;  // what left_ was at first
  std::uint32_t left_ = 0;
};

}  // namespace uvm
