// The pages that are on one device, as far as a live plan knows: those that it has brought, and
// those of kernels for which the driver has. The driver evicts the page first that came first.
//
// Not thread-safe, as LivePlan. Knows no driver.
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
  // Pages that have been brought and for which no kernel has waited.
  std::size_t arriving() const { return arriving_; }

  void add(Page& page);
  void remove(Page& page);
  void set_arriving(Page& page, bool is_arriving);
  // A kernel has used these pages, of which the driver moves those that are not there. A page takes
  // the chunk of the page that came first. A kernel that uses a part of its blocks moves fewer, so
  // pages that came in this way are uncertain.
  void add_by_driver(std::span<Page* const> used, std::size_t chunks);

 private:
  PageSet set_{&Page::place, &Page::last_use};
  std::size_t arriving_ = 0;
  std::uint64_t arrivals_ = 0;  // so far
};

}  // namespace uvm::live
