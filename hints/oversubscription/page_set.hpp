// What a live plan knows of a 2 MiB page, and sets of pages. A page is added, removed or visited in
// constant time, in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <vector>

#include "hints/oversubscription/page_history.hpp"
#include "hints/oversubscription/use_log.hpp"

namespace uvm::live {

struct Page {
  static constexpr std::size_t kNoPlace = std::numeric_limits<std::size_t>::max();
  static constexpr int kNoPeer = -1;

  PageNumber number{};
  KernelNumber last_use = 0;
  KernelNumber arrived_for = 0;          // the kernel for which it came to the device
  KernelNumber counted = 0;              // the kernel for which the page was counted last
  KernelNumber planned_last_use = 0;     // last use within the planned kernels
  std::size_t place = kNoPlace;          // index in the set of pages on the device
  std::size_t planned_place = kNoPlace;  // index in the set of planned pages
  std::uint64_t arrived = 0;             // the number of its arrival among all arrivals
  bool is_coming_new = false;   // planned for a kernel whose block in the page is not allocated yet
  bool is_arriving = false;     // no kernel has waited for its arrival yet
  bool is_uncertain = false;    // the driver may have evicted it from the device
  bool is_on_host = false;      // the plan has sent the page to the host
  bool keeps_copy = false;      // the host keeps the bytes while the page is on the device
  bool is_in_place = false;     // kernels use the page on the host
  KernelNumber used_often = 0;  // the last kernel that touches bytes more than once
  KernelNumber small_use = 0;   // the last kernel that uses small blocks in it
  bool is_on_peer = false;      // the plan has sent the page to a peer
  int peer = kNoPeer;           // the peer where the page is, or was recently
  std::uint64_t peer_period = 0;  // period of PeerPages when it was sent to the peer
  KernelNumber freed = 0;         // newest kernel at the last free of a block in it
  PageHistory history;

  // The position of the page in ShadowLru.
  struct Shadow {
    enum class Place : std::uint8_t { kNowhere, kDevice, kHost };

    Place place = Place::kNowhere;
    KernelNumber last_use = 0;
    std::list<Page*>::iterator position;  // if on the device: position in the order of uses
  };
  Shadow shadow;
};

class PageSet {
 public:
  // `place` and `last_use` are the members of Page that store the page's index in this set, and the
  // last use that this set considers.
  PageSet(std::size_t Page::*place, KernelNumber Page::*last_use)
      : place_(place), last_use_(last_use) {}

  std::size_t size() const { return pages_.size(); }
  Page& operator[](std::size_t index) const { return *pages_[index]; }
  KernelNumber last_use(const Page& page) const { return page.*last_use_; }
  bool contains(const Page& page) const { return page.*place_ != Page::kNoPlace; }
  auto begin() const { return pages_.begin(); }
  auto end() const { return pages_.end(); }

  void add(Page& page) {
    page.*place_ = pages_.size();
    pages_.push_back(&page);
  }
  void remove(Page& page) {
    pages_.back()->*place_ = page.*place_;
    pages_[page.*place_] = pages_.back();
    pages_.pop_back();
    page.*place_ = Page::kNoPlace;
  }
  void clear() {
    for (Page* page : pages_) page->*place_ = Page::kNoPlace;
    pages_.clear();
  }

 private:
  std::size_t Page::*place_;
  KernelNumber Page::*last_use_;
  std::vector<Page*> pages_;
};

}  // namespace uvm::live
