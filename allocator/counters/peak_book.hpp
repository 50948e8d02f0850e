// Peaks of sums over threads, and of the process: the other half of Tally. Guarded by the lock of
// the thread caches, held with all caches frozen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <uvmalloc/allocator/counters/tally.hpp>

namespace uvm {

// How what lies below a peak is shared out among threads as room to grow: half to the one that
// asks, the rest evenly among those that have allocated since the last time. Room of a thread that
// stands still would be of no use to anybody.
class RoomShares {
 public:
  // The next thread.
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

class PeakBook {
 public:
  static constexpr std::size_t kSums = Tally::kAll + 1;
  struct Place {
    std::array<Amounts, kSums> peaks;
    std::array<Amounts, kSums> increased_before;
    std::array<Amounts, kSums> decreased_before;
  };

  // `places` outlive the book.
  explicit PeakBook(std::span<Place> places) : places_(places) {}

  // Notes the present sum of `tallies`, those of one place, and of `ended`, as peaks where it is
  // one, and shares out what lies below the peaks.
  void add_up(std::size_t place, std::span<Tally* const> tallies, const Tally& ended,
              const RoomShares& shares);

  // Starts peaks again from the present sum, and totals from zero. Room shared out before is too
  // much then: add_up() follows.
  void reset_peaks(std::size_t place) { places_[place].peaks = {}; }
  void reset_totals(std::size_t place, const Tally& sum);

  const Amounts& peak(std::size_t place, std::size_t of) const { return places_[place].peaks[of]; }
  // Allocated and freed since the start or the last reset.
  Amounts increased(std::size_t place, std::size_t of, const Tally& sum) const;
  Amounts decreased(std::size_t place, std::size_t of, const Tally& sum) const;

 private:
  std::span<Place> places_;
};

}  // namespace uvm
