// How much of a device's memory may spill to the host (UVMALLOC_SPILL). By itself nothing limits it
// but the budget. A program that searches for the largest batch would then get no out-of-memory
// error before steps are many times slower. So spilling is limited
//   by the setting     1x: nothing spills; Nx: a step may be N times slower
//   in a search        that a known function makes: nothing spills
//   in what seems one  thrashing ends in an error. It seems one if the program's requests have
//                      grown kLeastGrowths times, and it handles out-of-memory errors, or has gone
//                      on after one.
//
// Thread-safe. The state lock guards all that changes.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <uvmalloc/types.hpp>
#include "allocator/engine/heap_state.hpp"
#include "allocator/engine/request.hpp"

namespace uvm {

class SpillLimit {
 public:
  // Times that the largest request of a device has grown, by kGrowth at least. Requests below
  // 1/kDeviceParts of the device do not count.
  static constexpr unsigned kLeastGrowths = 4;
  static constexpr double kGrowth = 1.05;
  static constexpr std::size_t kDeviceParts = 256;
  // A step that is so many times slower thrashes, if the setting does not say.
  static constexpr double kSlowdown = 2;

  SpillLimit(const Machine& machine, HeapState& state);
  SpillLimit(const SpillLimit&) = delete;
  SpillLimit& operator=(const SpillLimit&) = delete;

  // As in CachingManagedAllocator::set_search_signs().
  using FindSign = std::function<SearchSign()>;
  void set_find_sign(FindSign find_sign);

  // Before a large request takes new pages: sets the limit of its device, until end_growth(). True:
  // begin_limit() is to follow if the program is in a search.
  bool begin_growth(const LockedHeap& heap, const Request& request);
  static void begin_limit(const LockedHeap& heap, const Request& request);
  // Called without the lock.
  bool is_search() { return find_sign() == SearchSign::kSearches; }
  static void end_growth(const LockedHeap& heap, const Request& request) {
    if (request.facade != Facade::kDevice) return;
    heap->spill_limits[static_cast<std::size_t>(request.device)] = SIZE_MAX;
  }

  // From which slowdown on a step thrashes.
  double most_slowdown() const;
  // Whether the program gets an out-of-memory error because it thrashes there.
  bool ends_thrashing(int device);
  // The program got an out-of-memory error on the device.
  void note_error(int device);

  // What to do to let more spill: one sentence.
  std::string way_to_spill() const;

 private:
  struct Growth {
    std::size_t largest_bytes = 0;
    unsigned times = 0;
    bool has_had_error = false;
  };

  bool spills_nothing() const { return setting_ == 1; }
  bool may_search() const { return !setting_; }
  SearchSign find_sign();

  const Machine& machine_;
  HeapState& state_;
  const std::optional<double> setting_;
  FindSign find_sign_ UVM_GUARDED_BY(state_);
  std::vector<Growth> growths_ UVM_GUARDED_BY(state_);  // by device
};

}  // namespace uvm
