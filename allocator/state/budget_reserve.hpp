// The reserve that small objects may take beyond the budget when nothing else helps: one page for
// each memory kind on each device. With it, a program that has used up the budget can still read or
// print a value, free something and continue. Guarded by the state lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include <uvmalloc/facade.hpp>
#include "storage/pages.hpp"

namespace uvm {

class BudgetReserve {
 public:
  explicit BudgetReserve(std::size_t devices) {
    for (auto& facade : taken_bytes_) facade.resize(devices);
  }

  // The most bytes by which all memory kinds and devices together may exceed the budget.
  std::size_t size_bytes() const { return kFacades * taken_bytes_[0].size() * kPageBytes; }

  bool has_page(Facade facade, int device) const { return of(facade, device) < kPageBytes; }

  void take_page(Facade facade, int device) { of(facade, device) += kPageBytes; }
  // Makes reserve pages available again, because pools of that memory kind have lost pages.
  void give_back(Facade facade, int device, std::size_t size_bytes) {
    std::size_t& taken = of(facade, device);
    taken -= std::min(taken, size_bytes);
  }
  // Called when the budget is no longer exceeded: all reserve pages are available again.
  void refill() {
    for (auto& facade : taken_bytes_) std::fill(facade.begin(), facade.end(), 0);
  }

 private:
  std::size_t& of(Facade facade, int device) {
    return taken_bytes_[static_cast<std::size_t>(facade)][static_cast<std::size_t>(device)];
  }
  std::size_t of(Facade facade, int device) const {
    return taken_bytes_[static_cast<std::size_t>(facade)][static_cast<std::size_t>(device)];
  }

  std::array<std::vector<std::size_t>, kFacades> taken_bytes_;  // by memory kind and device
};

}  // namespace uvm
