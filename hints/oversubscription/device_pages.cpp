#include "hints/oversubscription/device_pages.hpp"

#include <algorithm>
#include <functional>
#include <vector>

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
  std::vector<Page*> first_to_come(set_.begin(), set_.end());  // a heap
  std::ranges::make_heap(first_to_come, std::greater(), &Page::arrived);
  for (Page* page : used) {
    if (contains(*page)) continue;
    if (size() >= chunks && !first_to_come.empty()) {
      std::ranges::pop_heap(first_to_come, std::greater(), &Page::arrived);
      Page& victim = *first_to_come.back();
      first_to_come.pop_back();
      remove(victim);
      victim.is_on_host = true;
    }
    add(*page);
    page->is_uncertain = true;
    first_to_come.push_back(page);
    std::ranges::push_heap(first_to_come, std::greater(), &Page::arrived);
  }
}

}  // namespace uvm::live
