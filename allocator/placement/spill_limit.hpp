// How much of a device's memory may spill to the host (UVMALLOC_SPILL). By default only the budget
// limits it. A program that searches for the largest batch would then get no out-of-memory error
// before its steps are many times slower. So spilling is limited
//   by the setting   at 1x nothing spills; at Nx a step may be N times slower
//   in a search      if a function that is known to search runs, nothing spills
//   if the program   thrashing ends in an error: the program's requests have grown
//   seems to search  kLeastGrowths times, and it handles out-of-memory errors or has
//                    continued after one
//
// Thread-safe. The state lock guards all that changes.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <uvmalloc/types.hpp>
#include "allocator/state/heap_state.hpp"
#include "allocator/state/request.hpp"

namespace uvm {

class SpillLimit {
 public:
  // How often the largest request of a device has grown by kGrowth at least before the program
  // seems to search. Requests below 1/kDeviceParts of the device do not count.
  static constexpr unsigned kLeastGrowths = 4;
  static constexpr double kGrowth = 1.05;
  static constexpr std::size_t kDeviceParts = 256;
  // A step that is this many times slower thrashes, unless the setting says otherwise.
  static constexpr double kSlowdown = 2;

  SpillLimit(const Machine& machine, HeapState& state);
  SpillLimit(const SpillLimit&) = delete;
  SpillLimit& operator=(const SpillLimit&) = delete;

  // Returns whether the program searches for the largest batch. Called without the lock.
  using FindSign = std::function<SearchSign()>;
  void set_find_sign(FindSign find_sign);

  // Called before a large request takes new pages: sets the limit of its device until end_growth().
  // True: call is_search(), and call begin_limit() if the program is in a search.
  bool begin_growth(const LockedHeap& heap, const Request& request);
  static void begin_limit(const LockedHeap& heap, const Request& request);
  // Called without the lock.
  bool is_search() { return find_sign() == SearchSign::kSearches; }
  static void end_growth(const LockedHeap& heap, const Request& request) {
    if (request.facade != Facade::kDevice) return;
    heap->spill_limits[static_cast<std::size_t>(request.device)] = SIZE_MAX;
  }

  // The slowdown from which a step thrashes.
  double most_slowdown() const;
  // Whether thrashing on the device ends in an out-of-memory error.
  bool ends_thrashing(int device);
  // The program got an out-of-memory error on the device.
  void note_error(int device);

  // One sentence about how to let more memory spill.
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
