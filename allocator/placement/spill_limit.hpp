// Limits how much of a device's memory may spill to the host (UVMALLOC_SPILL). By default only the
// budget limits spilling. A program that searches for the largest batch would then get no
// out-of-memory error before its steps are many times slower. Therefore:
//   setting 1x   nothing spills
//   setting Nx   thrashing that makes a step N times slower ends in an error
//   search       nothing spills while a function that is known to search runs
//   signs of a   thrashing ends in an error if the program's requests have grown kSearchGrowths
//   search       times, and the program handles out-of-memory errors or has continued after one
//
// Thread-safe. The state lock guards all members that change.
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
  SpillLimit(const Machine& machine, HeapState& state);
  SpillLimit(const SpillLimit&) = delete;
  SpillLimit& operator=(const SpillLimit&) = delete;

  // Returns the sign, if any, that the program searches for the largest batch. Called without the
  // state lock.
  using FindSign = std::function<SearchSign()>;
  void set_find_sign(FindSign find_sign);

  // Called before a large request takes new pages. With the setting 1x, limits the device to its
  // soft budget until end_growth(). Returns whether the caller must call is_search() (without the
  // state lock), and begin_limit() if the program searches.
  bool begin_growth(const LockedHeap& heap, const Request& request);
  static void begin_limit(const LockedHeap& heap, const Request& request);
  bool is_search() { return find_sign() == SearchSign::kSearches; }
  static void end_growth(const LockedHeap& heap, const Request& request) {
    if (request.facade != Facade::kDevice) return;
    heap->spill_limits[static_cast<std::size_t>(request.device)] = SIZE_MAX;
  }

  // Returns the slowdown from which a step counts as thrashing.
  double most_slowdown() const;
  // Returns whether thrashing on the device must end in an out-of-memory error.
  bool ends_thrashing(int device);
  // Records that the program got an out-of-memory error on the device.
  void note_error(int device);

  // Returns the part of an error message that says how to let more memory spill.
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
