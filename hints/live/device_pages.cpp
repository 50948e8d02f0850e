#include <uvmalloc/hints/live/device_pages.hpp>

#include <algorithm>
#include <deque>

namespace uvm::live {

void DevicePages::add(Page& page) {
  set_.add(page);
  page.arrived = ++arrivals_;
  page.is_on_host = false;
  page.is_uncertain = false;
}

void DevicePages::remove(Page& page) {
  set_.remove(page);
  set_arriving(page, false);
}

void DevicePages::set_arriving(Page& page, bool is_arriving) {
  arriving_ += static_cast<std::size_t>(is_arriving) - static_cast<std::size_t>(page.is_arriving);
  page.is_arriving = is_arriving;
}

void DevicePages::add_by_driver(std::span<Page* const> used, std::size_t chunks) {
  std::deque<Page*> by_arrival(set_.begin(), set_.end());
  if (used.size() > 1) std::ranges::sort(by_arrival, {}, &Page::arrived);
  for (Page* page : used) {
    if (contains(*page)) continue;
    if (size() >= chunks && !by_arrival.empty()) {
      const auto first = used.size() > 1 ? by_arrival.begin()
                                         : std::ranges::min_element(by_arrival, {}, &Page::arrived);
      Page& victim = **first;
      by_arrival.erase(first);
      remove(victim);
      victim.is_on_host = true;
    }
    add(*page);
    page->is_uncertain = true;
    by_arrival.push_back(page);
  }
}

}  // namespace uvm::live
