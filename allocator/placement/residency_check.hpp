// Compares, a part at a time, where the live plan of a device expects its pages with where the
// driver reports them. If pages are missing on the device, and the device has no room for them,
// another program has taken memory of the device, so the plan stops using that memory. After some
// rounds that find all pages, the plan tries one page of that memory again, then two, and so on. If
// pages get lost again, more rounds pass before the next try.
//
// Not thread-safe: guarded by LivePlanner's sending lock. Calls the driver.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "allocator/state/heap_state.hpp"

namespace uvm {

class ResidencyCheck {
 public:
  struct Result {
    std::size_t expected = 0;           // pages that were expected on the device
    std::size_t found = 0;              // pages of these that are on the device
    std::size_t lost = 0;               // pages that are not there, although none of them moves
    std::vector<PageNumber> corrected;  // pages that the plan expected on another place
    std::vector<PageNumber> unknown;    // pages that no kernel of the plan has used
  };
  // Compares pages with the plan, and corrects the plan. Element i says whether the page `first` +
  // i is on the device.
  using Compare = std::function<Result(PageNumber first_page, const std::vector<bool>& are_here)>;

  ResidencyCheck(Machine& machine, HeapState& state, int device, Compare compare);

  // Compares the next pages, if the driver reports where pages are.
  void compare_some();
  // Returns the number of pages that other programs have taken, estimated from lost pages.
  std::size_t taken_pages() const { return taken_; }

 private:
  struct Part {
    char* begin = nullptr;
    std::size_t pages = 0;
  };
  Part next_part();
  void compare_part(const Part& part);
  void end_round();
  // Returns whether the device has free memory for this number of pages.
  bool has_room_for(std::size_t pages) const;

  Machine& machine_;
  HeapState& state_;
  const int device_;
  const Compare compare_;
  char* compared_until_ = nullptr;  // in this round
  std::size_t expected_ = 0;        // in this round
  std::size_t found_ = 0;           // in this round
  std::size_t lost_ = 0;            // in this round
  std::size_t taken_ = 0;
  std::size_t good_rounds_ = 0;  // since pages were last lost, or memory was tried again
  std::size_t rounds_to_try_ = 1;
  std::size_t pages_to_try_ = 1;
};

}  // namespace uvm
