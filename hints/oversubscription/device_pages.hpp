// The pages that are on one device by the knowledge of a live plan: pages that the plan has
// prefetched, and pages that the driver has migrated for kernels. The driver evicts pages in the
// order of their arrival.
//
// Not thread-safe, like LivePlan. Calls no driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hints/oversubscription/page_set.hpp"

namespace uvm::live {

class DevicePages {
 public:
  const PageSet& set() const { return set_; }
  std::size_t size() const { return set_.size(); }
  bool contains(const Page& page) const { return set_.contains(page); }
  // Returns the number of prefetched pages for which no kernel has waited yet.
  std::size_t arriving() const { return arriving_; }

  void add(Page& page);
  void remove(Page& page);
  void set_arriving(Page& page, bool is_arriving);
  // Call this after a kernel has used these pages, of which the driver migrates the missing ones.
  // Each of them takes the chunk of the page that arrived first. If the kernel uses only a part of
  // its blocks, fewer pages migrate, so pages that arrived in this way are uncertain.
  void add_by_driver(std::span<Page* const> used, std::size_t chunks);

 private:
  PageSet set_{&Page::place, &Page::last_use};
  std::size_t arriving_ = 0;
  std::uint64_t arrivals_ = 0;  // number of all arrivals
};

}  // namespace uvm::live
