// Tracks the peaks of sums over all threads' counters (ThreadCounters). Used only while the world
// is stopped (ThreadCaches::StopTheWorld).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/counters/thread_counters.hpp"

namespace uvm {

// Divides the headroom between a sum and its peak among the threads. At least half goes to the
// calling thread, the rest in equal parts to the other threads that have allocated since the last
// division. Idle threads get none, but if all are idle, each gets an equal part.
class HeadroomShares {
 public:
  // Adds a thread. `asks`: the added thread is the calling thread.
  void add(bool has_allocated, bool asks);
  std::int64_t part(std::size_t thread, std::int64_t room) const;
  Amounts part(std::size_t thread, const Amounts& room) const {
    return {part(thread, room.blocks), part(thread, room.bytes),
            part(thread, room.requested_bytes)};
  }
  void clear();

 private:
  static constexpr std::size_t kNobody = ~std::size_t{0};
  std::vector<bool> takes_part_;
  std::int64_t parties_ = 0;
  std::size_t asking_ = kNobody;
};

class PeakTracker {
 public:
  static constexpr std::size_t kSums = ThreadCounters::kAll + 1;
  struct Peaks {
    std::array<Amounts, kSums> peaks;
    std::array<Amounts, kSums> increased_before;
    std::array<Amounts, kSums> decreased_before;
  };

  // `counters` must outlive the tracker.
  explicit PeakTracker(std::span<Peaks> counters) : counters_(counters) {}

  // Sums `thread_counts` and `ended`, all at the same index, updates the peaks, and divides the
  // headroom below the peaks among the threads.
  void aggregate(std::size_t counter, std::span<ThreadCounters* const> thread_counts,
                 const ThreadCounters& ended, const HeadroomShares& shares);

  // Restart the peaks from the current sum, and the totals from zero. The caller must call
  // aggregate() afterwards, because the threads' headroom is too large until then.
  void reset_peaks(std::size_t counter) { counters_[counter].peaks = {}; }
  void reset_totals(std::size_t counter, const ThreadCounters& sum);

  const Amounts& peak(std::size_t counter, std::size_t of) const {
    return counters_[counter].peaks[of];
  }
  // Return what was allocated, or freed, since the start or the last reset.
  Amounts increased(std::size_t counter, std::size_t of, const ThreadCounters& sum) const;
  Amounts decreased(std::size_t counter, std::size_t of, const ThreadCounters& sum) const;

 private:
  std::span<Peaks> counters_;
};

}  // namespace uvm
