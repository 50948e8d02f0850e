// A page of 2 MiB as a live plan knows it, and sets of pages that are added, removed and visited in
// any order in constant time.
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
  KernelNumber counted = 0;              // the kernel of which it was counted as a page
  KernelNumber planned_last_use = 0;     // as far as kernels are planned
  std::size_t place = kNoPlace;          // in the set of pages on the device
  std::size_t planned_place = kNoPlace;  // in the set of pages that are there later
  std::uint64_t arrived = 0;             // it was the device's so manieth arrival
  bool is_arriving = false;              // since no kernel has waited for it
  bool is_uncertain = false;             // the driver may have evicted it from the device
  bool is_on_host = false;               // the plan has sent it there
  bool keeps_copy = false;               // on the host, while it is on the device
  bool is_in_place = false;              // kernels use it on the host
  KernelNumber used_often = 0;           // a kernel, or a coming one, touches bytes more than once
  KernelNumber small_use = 0;            // the last kernel that uses small blocks in it
  bool is_on_peer = false;               // the plan has sent it there
  int peer = kNoPeer;                    // where it is, or was lately
  std::uint64_t peer_period = 0;         // of PeerPages, when it was sent there
  KernelNumber freed = 0;                // the newest kernel at the last free of a block in it
  PageHistory history;

  // Where ShadowLru has the page.
  struct Shadow {
    enum class Place : std::uint8_t { kNowhere, kDevice, kHost };

    Place place = Place::kNowhere;
    KernelNumber last_use = 0;
    std::list<Page*>::iterator position;  // on the device: in the order of uses
  };
  Shadow shadow;
};

class PageSet {
 public:
  // The members in which a page keeps its place in this set, and its last use as this set sees it.
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
